#compdef exeat
# Completion of exeat for zsh, made by `exeat completion zsh`.

_exeat_sandboxes() {
  local -a names
  names=(${(f)"$(exeat proxy ls --names 2>/dev/null)"})
  _wanted sandboxes expl sandbox compadd -a names
}
@FUNCTIONS@
# Read by compinit it is the body of a function, called to complete something; else it is being sourced.
if [[ $funcstack[1] == _exeat ]]; then
  _exeat "$@"
else
  compdef _exeat exeat
fi

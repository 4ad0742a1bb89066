# Completion of exeat for bash, made by `exeat completion bash`.

_exeat_place() { # what may follow the words in $1
  commands= options= argument=
  case $1 in
@PLACES@
  esac
}

_exeat_value() { # what the option $2 takes behind the words in $1; fails if it takes nothing
  case "$1 $2" in
@VALUES@
    *) return 1 ;;
  esac
}

_exeat_offer() { # complete $2 by what $1 says
  local word
  case $1 in
    file)
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$2")
      ;;
    sandbox) COMPREPLY+=($(compgen -W "$(exeat proxy ls --names 2>/dev/null)" -- "$2")) ;;
    command)
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -c -- "$2")
      ;;
    words:*) COMPREPLY+=($(compgen -W "${1#words:}" -- "$2")) ;;
  esac
}

_exeat_command() { # the command that exeat is to run begins at word $1
  if declare -F _comp_command_offset >/dev/null; then
    _comp_command_offset "$1"
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif ((COMP_CWORD == $1)); then
    _exeat_offer command "${COMP_WORDS[COMP_CWORD]}"
  else
    _exeat_offer file "${COMP_WORDS[COMP_CWORD]}"
  fi
}

_exeat() {
  local current=${COMP_WORDS[COMP_CWORD]} place= option= kind= commands options argument word number
  COMPREPLY=()
  _exeat_place ''
  for ((number = 1; number < COMP_CWORD; number++)); do
    word=${COMP_WORDS[number]}
    if [[ -n $option ]]; then
      [[ $word == '=' ]] || option= # bash takes --name=x apart: --name, =, x
    elif [[ $word == -- ]]; then
      if [[ $argument == command ]]; then
        _exeat_command $((number + 1))
        return
      fi
    elif [[ $word == -* ]]; then
      [[ $word != *=* ]] && _exeat_value "$place" "$word" >/dev/null && option=$word
    elif [[ " $commands " == *" $word "* ]]; then
      place=${place:+$place }$word
      _exeat_place "$place"
    elif [[ $argument == command ]]; then
      _exeat_command "$number"
      return
    fi
  done
  if [[ -n $option ]]; then
    [[ $current == '=' ]] && current=
    _exeat_offer "$(_exeat_value "$place" "$option")" "$current"
  elif [[ $current == --*=* ]] && kind=$(_exeat_value "$place" "${current%%=*}"); then
    _exeat_offer "$kind" "${current#*=}"
    COMPREPLY=("${COMPREPLY[@]/#/${current%%=*}=}")
  elif [[ $current == -* ]]; then
    _exeat_offer "words:$options" "$current"
  elif [[ -n $commands ]]; then
    _exeat_offer "words:$commands" "$current"
  elif [[ $argument == command ]]; then
    _exeat_command "$COMP_CWORD"
  else
    _exeat_offer "$argument" "$current"
  fi
}

complete -F _exeat exeat

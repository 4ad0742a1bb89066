# Completion of exeat for fish, made by `exeat completion fish`.

set -g __exeat_commands @COMMANDS@
set -g __exeat_valued @VALUED@

# Which of exeat's words are there already, without options. Behind the command that is to be run: `run --`,
# and which of the words that one is.
function __exeat_words
    set -l place
    set -l skip 0
    set -l number 1
    for word in (commandline -opc)[2..-1]
        set number (math $number + 1)
        if test $skip = 1
            set skip 0
        else if test "$word" = -- -a "$place" = run
            echo run --
            math $number + 1
            return
        else if string match -q -- '-*' $word
            contains -- "$place $word" $__exeat_valued; and set skip 1
        else if contains -- (string trim -- "$place $word") $__exeat_commands
            set place (string trim -- "$place $word")
        else if test "$place" = run
            echo run --
            echo $number
            return
        end
    end
    echo $place
end

function __exeat_at
    set -l words (__exeat_words)
    test "$words[1]" = "$argv"
end

# What the command itself would be offered.
function __exeat_command
    set -l words (__exeat_words)
    set -l before (commandline -opc)
    complete -C (string join ' ' -- (string escape -- $before[$words[2]..-1]) (commandline -ct))
end

complete -c exeat -e
complete -c exeat -f
complete -c exeat -n '__exeat_at run --' -f -a '(__exeat_command)'

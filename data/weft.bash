# SPDX-License-Identifier: MIT
# Completion of `weft` in bash: commands, options, and for --on, --to and --via the hosts of the standing cluster. All of it comes from the command
# itself: `weft --help`, `weft COMMAND --help`, `weft status --json`.

# Options of a command, or the commands, as its help lists them.
_weft_words()
{
    local line
    while IFS= read -r line; do
        if [[ $2 == commands && $line =~ ^\ \ ([a-z]+)\ \ + ]]; then
            [[ ${BASH_REMATCH[1]} == weft ]] || printf '%s\n' "${BASH_REMATCH[1]}"
        elif [[ $2 != commands && $line =~ ^\ +(-[a-zA-Z],\ )?(--[a-z-]+) ]]; then
            printf '%s\n' "${BASH_REMATCH[2]}"
        fi
    done < <("$1" ${2/#commands/} --help 2>/dev/null </dev/null)
}

_weft_hosts()
{
    local cluster=() i
    for ((i = 2; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == --cluster ]] || continue
        [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))
        cluster=(--cluster "${COMP_WORDS[i + 1]}")
    done
    "$1" status --json "${cluster[@]}" 2>/dev/null </dev/null | grep -o '"host": *"[^"]*"' | sed 's/.*"\([^"]*\)"$/\1/' | sort -u
}

_weft()
{
    local weft=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$(_weft_words "$weft" commands) help --help --version" -- "$word")
        return
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do # the program that run, exec or map starts, and its arguments
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        ((i + 1 == COMP_CWORD)) && mapfile -t COMPREPLY < <(compgen -c -- "$word")
        return
    done
    if [[ $word == = ]]; then # bash takes --on=a apart
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if [[ $command == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_weft_words "$weft" commands)" -- "$word")
    elif [[ $before == --via ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_weft_hosts "$weft")" -- "$word")
    elif [[ $command == publish && $before == --to ]]; then
        mapfile -t COMPREPLY < <(compgen -S : -W "$(_weft_hosts "$weft")" -- "$word")
        compopt -o nospace 2>/dev/null # a port follows
    elif [[ $before == --on || $before == --to ]]; then
        local given=
        [[ $word == *,* ]] && given=${word%,*},
        mapfile -t COMPREPLY < <(compgen -P "$given" -W "$(_weft_hosts "$weft") all" -- "${word##*,}")
        compopt -o nospace 2>/dev/null # a comma may follow
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_weft_words "$weft" "$command")" -- "$word")
    fi
}

# Where nothing of this fits, names of files.
complete -o default -F _weft weft

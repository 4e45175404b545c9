
# Quotes the candidates in COMPREPLY, so that a shell takes them as names: $1 is the word, as it was typed, that they replace.
_tuff_quote() {
    local before="${COMP_LINE:0:COMP_POINT}" index name
    before="${before%"$1"}"
    for index in "${!COMPREPLY[@]}"; do
        name="${COMPREPLY[index]}"
        case "${before: -1}" in
            # A name that ends with the quote seems to close it already.
            \')
                name="${name//\'/\'\\\'\'}"
                [[ "$name" == *\' ]] && name+=\'
                ;;
            \")
                # History expansion works in double quotes, and nothing quotes it there.
                if [[ "$name" == *'!'* ]]; then
                    unset "COMPREPLY[index]"
                    continue
                fi
                name="${name//\\/\\\\}" name="${name//\"/\\\"}" name="${name//\$/\\\$}" name="${name//\`/\\\`}"
                [[ "$name" == *\" ]] && name+=\"
                ;;
            *) printf -v name %q "$name" ;;
        esac
        COMPREPLY[index]="$name"
    done
}

# Paths in images come from tuff itself. Status 1: the word is something else.
_tuff_with_images() {
    local names
    if names=$("$1" completions bash -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null); then
        # bash would quote some characters of names that are no files of the host, but neither $ nor backquotes.
        compopt +o bashdefault +o default +o filenames 2>/dev/null
        COMPREPLY=()
        if [[ -n "$names" ]]; then
            mapfile -t COMPREPLY <<< "$names"
        fi
        if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]]; then
            compopt -o nospace 2>/dev/null
        fi
        _tuff_quote "$2"
    else
        _tuff "$@"
    fi
}

complete -F _tuff_with_images -o nosort -o bashdefault -o default tuff

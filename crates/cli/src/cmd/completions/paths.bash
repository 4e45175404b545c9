
# Paths in images come from tuff itself. Status 1: the word is something else.
_tuff_with_images() {
    local names
    if names=$("$1" completions bash -- "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null); then
        compopt +o bashdefault +o default -o filenames 2>/dev/null
        COMPREPLY=()
        if [[ -n "$names" ]]; then
            mapfile -t COMPREPLY <<< "$names"
        fi
        if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]]; then
            compopt -o nospace 2>/dev/null
        fi
    else
        _tuff "$@"
    fi
}

complete -F _tuff_with_images -o nosort -o bashdefault -o default tuff

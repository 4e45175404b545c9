# Paths in images come from tuff itself. Status 1: the word is something else.
functions[_tuff_without_images]=$functions[_tuff]

_tuff() {
    local names
    if names=$("${(Q)words[1]}" completions zsh -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null); then
        local -a all
        [[ -n "$names" ]] && all=("${(@f)names}")
        compadd -S '' -- "${(@M)all:#*/}"
        compadd -- "${(@)all:#*/}"
    else
        _tuff_without_images "$@"
    fi
}


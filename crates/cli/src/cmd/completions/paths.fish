
# Paths in images come from tuff itself. Status 1: the word is something else.
function __tuff_paths_in_image
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set word (string unescape -- "$word"; or echo -- "$word")
    command tuff completions fish -- $words "$word" 2>/dev/null
end

complete -c tuff -n '__tuff_paths_in_image >/dev/null' -f -a '(__tuff_paths_in_image)'

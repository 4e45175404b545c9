//! Completion of paths in images, by real shells.

use crate::common::{Place, code, stderr};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tuff_testkit::skipped;

/// A directory with the image `i`, a damaged one, and the scripts of all shells.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    for file in [
        "usr/share/doc/a",
        "usr/share/my file",
        "usr/share/Foo::Bar",
        "usr/share/Foo::Baz",
        "usr/sbin/tool",
        "etc/it's",
    ] {
        let path = place.path("src").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    place.text(&["build", "-q", "src", "i"]);
    place.text(&["build", "-q", "src", "i.erofs"]);
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes[1024..].fill(0xa5);
    fs::write(place.path("damaged"), bytes).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.text(&["completions", shell]);
        fs::write(place.path(&format!("tuff.{shell}")), script).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tuff"), place.path("tuff")).unwrap();
    place
}

/// Names that complete the last word of a line, as the verb prints them for fish and zsh.
fn names(place: &Place, words: &[&str]) -> Option<Vec<String>> {
    let out = place.run(&[&["completions", "fish", "--", "tuff"], words].concat());
    assert_eq!(stderr(&out), "", "{words:?}");
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    match code(&out) {
        0 => Some(message.lines().map(str::to_owned).collect()),
        1 => {
            assert_eq!(message, "", "{words:?}");
            None
        }
        code => panic!("{words:?}: {code}"),
    }
}

#[test]
fn paths_in_images_are_completed_from_one_directory() {
    let place = stage("completions-names");
    for (words, expected) in [
        (&["cat", "i", "/us"][..], &["/usr/"][..]),
        (&["cat", "i", "us"], &["usr/"]),
        (&["ls", "-l", "i", "/usr/s"], &["/usr/sbin/", "/usr/share/"]),
        (
            &["cat", "i", "/etc/it's", "/usr/sbin/"],
            &["/usr/sbin/tool"],
        ),
        (&["stat", "--offset", "0", "i", "etc/"], &["etc/it's"]),
        (
            &["stat", "--extents", "i", "/usr/share/do"],
            &["/usr/share/doc/"],
        ),
        (&["extract", "i", "out", "--exclude", "x", "e"], &["etc/"]),
        (&["tar", "i", "-", "e"], &["etc/"]),
        (&["cat", "i", "/nothing/"], &[]),
        (&["cat", "i", "/usr/sbin/tool/"], &[]),
        (&["cat", "damaged", "/"], &[]),
        (&["cat", "absent", "/"], &[]),
        (&["cat", "https://127.0.0.1:9/i", "/"], &[]),
    ] {
        let found = names(&place, words);
        assert_eq!(
            found.as_deref(),
            Some(&expected.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]),
            "{words:?}"
        );
    }
    // Images, options, directories of the host and other verbs are left to the script.
    for words in [
        &["cat", ""][..],
        &["cat", "i", "--o"],
        &["cat", "i", "--offset", "1"],
        &["extract", "i", "o"],
        &["build", "src", "i"],
        &["diff", "i", "i"],
        &["ca"],
    ] {
        assert_eq!(names(&place, words), None, "{words:?}");
    }
}

/// Runs a shell in the directory, where it finds `tuff`.
fn shell(place: &Place, shell: &str, args: &[&str]) -> Option<Output> {
    let path = std::env::var("PATH").unwrap();
    let out = Command::new(shell)
        .args(args)
        .current_dir(&place.0)
        .env("PATH", format!("{}:{path}", place.0.display()))
        .env("HOME", &place.0)
        .stdin(Stdio::null())
        .output();
    match out {
        Ok(out) => Some(out),
        Err(e) => {
            skipped(format_args!("{shell}: {e}"));
            None
        }
    }
}

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Calls the function that bash would call for a line. bash splits it at colons, too.
const BASH: &str = r#"
source tuff.bash
complete -p tuff
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_tuff_with_images tuff "$2" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

#[test]
fn bash_completes_paths_in_images() {
    let place = stage("completions-bash");
    for (line, word, expected) in [
        ("tuff cat i /us", "/us", "/usr/\n"),
        ("tuff cat i /usr/s", "/usr/s", "/usr/sbin/\n/usr/share/\n"),
        ("tuff cat i ", "", "etc/\nusr/\n"),
        (
            r"tuff cat i /usr/share/my\ ",
            r"/usr/share/my\ ",
            "/usr/share/my\\ file\n",
        ),
        (
            "tuff cat i '/usr/share/my ",
            "/usr/share/my ",
            "/usr/share/my file\n",
        ),
        ("tuff cat i /usr/share/Foo::B", "B", "Bar\nBaz\n"),
        ("tuff cat i /nothing", "/nothing", "\n"),
        ("tuff cat damaged /", "/", "\n"),
        // Options come from the script.
        ("tuff cat i --no-c", "--no-c", "--no-checksum\n"),
        ("tuff ca", "ca", "cat\n"),
    ] {
        let Some(out) = shell(&place, "bash", &["--norc", "-c", BASH, "bash", line, word]) else {
            return;
        };
        let message = stdout(&out);
        let (registered, names) = message.split_once('\n').unwrap();
        assert!(registered.contains("-F _tuff_with_images"), "{registered}");
        assert_eq!((names, stderr(&out).as_str()), (expected, ""), "{line}");
    }
}

/// Start of an interactive bash.
const RC: &str = "PATH=$PWD:$PATH; PS1='> '; source tuff.bash
bind 'set enable-bracketed-paste off'
";

/// bash decides which part of a line a name replaces, and how it is quoted.
#[test]
fn an_interactive_bash_completes_lines() {
    let place = stage("completions-interactive");
    fs::write(place.path("rc"), RC).unwrap();
    for (line, expected) in [
        ("tuff cat i /us", "tuff cat i /usr/"),
        (
            "tuff cat i /usr/share/my",
            r"tuff cat i /usr/share/my\ file ",
        ),
        (
            "tuff cat i '/usr/share/my ",
            "tuff cat i '/usr/share/my file' ",
        ),
        (
            "tuff cat i /usr/share/Foo::",
            "tuff cat i /usr/share/Foo::Ba",
        ),
        ("tuff cat i /nothing", "tuff cat i /nothing"),
        ("tuff cat i.e", "tuff cat i.erofs "),
    ] {
        // Tab; then an echo around the line, from its start (^A) to its end (^E).
        fs::write(
            place.path("keys"),
            format!("{line}\t\u{1}echo \"<\u{5}>\"\nexit\n"),
        )
        .unwrap();
        let run = "script -qec 'bash --noprofile --rcfile rc -i' /dev/null < keys";
        let Some(out) = shell(&place, "timeout", &["-k", "5", "60", "sh", "-c", run]) else {
            return;
        };
        let message = stdout(&out).replace('\r', "");
        let shown = message
            .lines()
            .find_map(|line| line.strip_prefix('<')?.strip_suffix('>'));
        assert_eq!(shown, Some(expected), "{message}");
    }
}

/// Names that a shell would run, expand or split. Each begins with a letter of its own.
const HOSTILE: &[&str] = &[
    "a`touch ran`",
    "b$(touch ran)",
    "c;touch ran",
    "d'`touch ran`'e",
    "e\"$(touch ran)\"",
    "f ~ {1,2} *",
    "g!touch",
    "h\\`touch ran`",
    "i>ran",
    "j&touch ran",
    "k${PATH:0:1}",
    "l|touch ran",
    "m#n",
];

/// Names that begin with a character that a shell expands.
const LEADING: &[&str] = &[
    "~root",
    "-x",
    "$HOME",
    "`touch ran`",
    "(touch ran)",
    "!touch",
];

/// A directory with the names in the image `i` and in the directory itself, and scripts of shells.
fn hostile_stage(name: &str) -> Place {
    let place = stage(name);
    fs::create_dir(place.path("names")).unwrap();
    for name in HOSTILE
        .iter()
        .chain(LEADING)
        .chain(&["n\x1b[2J", "o\ntouch ran"])
    {
        fs::write(place.path("names").join(name), name).unwrap();
    }
    for name in HOSTILE {
        fs::write(place.path(name), name).unwrap();
    }
    place.text(&["build", "-q", "names", "i"]);
    place
}

#[test]
fn an_interactive_bash_runs_nothing_of_a_name_that_it_completes() {
    let place = hostile_stage("completions-hostile");
    // Prints its last argument instead of the file.
    fs::write(
        place.path("rc"),
        format!("{RC}\nshow() {{ printf '<%s>\\n' \"${{@: -1}}\"; }}\n"),
    )
    .unwrap();
    let mut lines: Vec<(String, &str)> = Vec::new();
    for name in HOSTILE.iter().copied() {
        let start = &name[..1];
        for quote in ["", "'", "\""] {
            // Nothing keeps double quotes from expanding history.
            if quote != "\"" || !name.contains('!') {
                lines.push((format!("tuff cat i {quote}{start}"), name));
            }
        }
        // Files of the host: operands, and values of options.
        lines.push((format!("tuff info {start}"), name));
        lines.push((format!("tuff cat --device {start}"), name));
    }
    for (line, name) in lines {
        // Tab; then the verb becomes a function that prints, and the line runs.
        let keys = format!("{line}\t\u{1}\u{1b}d\u{1b}dshow \u{5}\nexit\n");
        fs::write(place.path("keys"), keys).unwrap();
        let run = "script -qec 'bash --noprofile --rcfile rc -i' /dev/null < keys";
        let Some(out) = shell(&place, "timeout", &["-k", "5", "60", "sh", "-c", run]) else {
            return;
        };
        let message = stdout(&out).replace('\r', "");
        assert!(!place.path("ran").exists(), "{line}: {message}");
        let shown = message
            .lines()
            .find_map(|line| line.strip_prefix('<')?.strip_suffix('>'));
        let shown = shown.map(str::trim_end);
        // Several files of the host may begin with the same letter.
        let is_name = match line.starts_with("tuff cat i ") {
            true => shown == Some(name),
            false => shown.is_some_and(|shown| shown == name || shown == &name[..1]),
        };
        assert!(is_name, "{line}: {shown:?}\n{message}");
    }
}

#[test]
fn candidates_are_words_of_bash_with_the_names() {
    let place = hostile_stage("completions-words");
    let script = "source tuff.bash; HISTFILE=; set +H
COMP_LINE='tuff cat i ' COMP_POINT=11 COMP_TYPE=9 COMP_WORDS=(tuff cat i '') COMP_CWORD=3
_tuff_with_images tuff '' i
for word in \"${COMPREPLY[@]}\"; do eval \"printf '%s\\n' $word\"; done";
    let Some(out) = shell(&place, "bash", &["--norc", "-c", script]) else {
        return;
    };
    assert!(!place.path("ran").exists());
    let message = stdout(&out);
    let mut found: Vec<&str> = message.lines().collect();
    found.sort();
    let mut expected: Vec<&str> = HOSTILE.iter().chain(LEADING).copied().collect();
    expected.retain(|name| *name != "-x");
    expected.push("./-x");
    expected.sort();
    assert_eq!(found, expected, "{}", stderr(&out));
}

#[test]
fn zsh_and_fish_quote_names_that_they_complete() {
    let place = hostile_stage("completions-quoted");
    if shell(&place, "zsh", &["--version"]).is_none() {
        return;
    }
    for name in HOSTILE {
        // zsh puts the candidate into the line; another zsh evaluates it.
        let line = format!("tuff cat i {}", &name[..1]);
        let out = shell(
            &place,
            "timeout",
            &["-k", "5", "60", "zsh", "-f", "-c", ZSH, "zsh", &line],
        );
        let message = stdout(&out.unwrap());
        let completed = message
            .rsplit("<LINE>")
            .next()
            .unwrap()
            .split("</LINE>")
            .next()
            .unwrap();
        let word = completed.strip_prefix("tuff cat i ").unwrap();
        let out = shell(&place, "zsh", &["-f", "-c", &format!("print -r -- {word}")]).unwrap();
        assert_eq!(stdout(&out).trim_end_matches('\n'), *name, "{message}");
        assert!(!place.path("ran").exists(), "{name}");
    }
    for name in HOSTILE {
        let line = format!("tuff cat i {}", &name[..1]);
        let script = format!("source tuff.fish; complete -C {}", quoted(&line));
        let Some(out) = shell(&place, "fish", &["--no-config", "-c", &script]) else {
            return;
        };
        // fish escapes a candidate when it puts it into the line.
        let message = stdout(&out);
        let candidate = message.trim_end_matches('\n');
        let script = format!("echo -- {candidate}");
        let out = match candidate == *name {
            true => continue,
            false => shell(&place, "fish", &["--no-config", "-c", &script]).unwrap(),
        };
        assert_eq!(stdout(&out).trim_end_matches('\n'), *name, "{message}");
        assert!(!place.path("ran").exists(), "{name}");
    }
}

#[test]
fn fish_completes_paths_in_images() {
    let place = stage("completions-fish");
    for (line, expected) in [
        ("tuff cat i /us", &["/usr/"][..]),
        ("tuff ls i /usr/s", &["/usr/sbin/", "/usr/share/"]),
        (r"tuff cat i /usr/share/my\ ", &["/usr/share/my file"]),
        ("tuff cat damaged /us", &[]),
    ] {
        let script = format!("source tuff.fish; complete -C {}", quoted(line));
        let Some(out) = shell(&place, "fish", &["--no-config", "-c", &script]) else {
            return;
        };
        let message = stdout(&out);
        // fish may quote what it prints.
        let found: Vec<String> = message.lines().map(|line| line.replace('\\', "")).collect();
        assert_eq!(found, expected, "{line}: {}", stderr(&out));
    }
    let script = "source tuff.fish; complete -C 'tuff ca'";
    if let Some(out) = shell(&place, "fish", &["--no-config", "-c", script]) {
        assert!(stdout(&out).starts_with("cat\t"), "{}", stdout(&out));
    }
}

fn quoted(line: &str) -> String {
    format!("'{}'", line.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Completes a line in an interactive zsh, whose terminal is a pty, and prints the line that results.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty -b z zsh -f -i
zpty -w z "PROMPT='> '; path=($PWD \$path); autoload -Uz compinit; compinit -u -d $PWD/dump; source tuff.zsh"
zpty -w z 'show() { print -r -- "<LINE>$BUFFER</LINE>"; }; zle -N show; bindkey "^X" show; bindkey "^I" expand-or-complete'
zpty -w z 'print -r -- "<REA""DY>"'
zpty -m -r z all '*<READY>*'
zpty -n -w z "$1"$'\t\C-X'
zpty -m -r z all '*</LINE>*'
print -r -- "$all"
zpty -d z
"#;

#[test]
fn zsh_completes_paths_in_images() {
    let place = stage("completions-zsh");
    for (line, expected) in [
        ("tuff cat i /us", "tuff cat i /usr/"),
        ("tuff cat i /usr/sb", "tuff cat i /usr/sbin/"),
        (
            "tuff cat i /usr/share/m",
            r"tuff cat i /usr/share/my\ file ",
        ),
        ("tuff cat damaged /us", "tuff cat damaged /us"),
        ("tuff complet", "tuff completions "),
    ] {
        let limited = ["-k", "5", "60", "zsh", "-f", "-c", ZSH, "zsh", line];
        if shell(&place, "zsh", &["--version"]).is_none() {
            return;
        }
        let Some(out) = shell(&place, "timeout", &limited) else {
            return;
        };
        let message = stdout(&out);
        let shown = message
            .rsplit("<LINE>")
            .next()
            .unwrap()
            .split("</LINE>")
            .next()
            .unwrap();
        assert_eq!(shown, expected, "{message}");
    }
}

#[test]
fn a_big_image_is_not_read_as_a_whole() {
    let place = Place::new("completions-big");
    let many = place.path("src/many");
    fs::create_dir_all(&many).unwrap();
    for i in 0..3000 {
        fs::write(many.join(format!("file-{i}")), []).unwrap();
    }
    fs::write(place.path("src/one"), "1").unwrap();
    place.text(&["build", "-q", "src", "i"]);
    // Whoever reads the other directory meets damage there.
    damage_directory(&place.path("i"), b"file-2999");
    assert_eq!(names(&place, &["cat", "i", "/o"]).unwrap(), ["/one"]);
}

/// Overwrites the block that holds a name.
fn damage_directory(image: &Path, name: &[u8]) {
    let mut bytes = fs::read(image).unwrap();
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap();
    let start = at & !4095;
    bytes[start..start + 4096].fill(0xff);
    fs::write(image, bytes).unwrap();
}

#[test]
fn hidden_options_are_neither_in_scripts_nor_in_manual_pages() {
    let place = Place::new("completions-hidden");
    let mut texts = Vec::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        texts.push(place.text(&["completions", shell]));
        assert!(texts.last().unwrap().contains("fetch-timeout"), "{shell}");
    }
    place.text(&["man", "pages"]);
    for page in fs::read_dir(place.path("pages")).unwrap() {
        texts.push(fs::read_to_string(page.unwrap().path()).unwrap());
    }
    for text in texts {
        for option in ["no-hedging", "no-push"] {
            let found = text.lines().find(|line| line.contains(option));
            assert_eq!(found, None);
        }
    }
}

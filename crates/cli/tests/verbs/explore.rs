//! The view of explore on a real terminal, which tmux provides.

use crate::common::{Place, code, skipped, stderr};
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time that a screen may take. Far more than needed, except on a busy host.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Server of tmux with one window, ended on drop.
struct Window<'a> {
    place: &'a Place,
    /// Number of the window, because the socket of a server that ends may linger.
    number: u32,
}

static WINDOWS: AtomicU32 = AtomicU32::new(0);

impl<'a> Window<'a> {
    /// Runs a command line in a window. None if there is no tmux.
    fn new(place: &'a Place, line: &str) -> Option<Self> {
        fs::write(place.path("run.sh"), line).unwrap();
        let number = WINDOWS.fetch_add(1, Relaxed);
        let window = Self { place, number };
        let start = [
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "130",
            "-y",
            "30",
            "sh run.sh",
        ];
        let out = match window.tmux(&start).output() {
            Ok(out) => out,
            Err(e) => {
                skipped(format_args!("tmux: {e}"));
                return None;
            }
        };
        assert!(out.status.success(), "{}", stderr(&out));
        Some(window)
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        let socket = format!("tmux-{}", self.number);
        tmux.current_dir(&self.place.0)
            .env_remove("TMUX")
            .env("TERM", "xterm-256color");
        tmux.args(["-S", &socket]).args(args);
        tmux
    }

    fn keys(&self, keys: &[&str]) {
        let out = self.tmux(&["send-keys"]).args(keys).output().unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
    }

    /// Waits until the screen contains `text`, and returns it.
    fn wait(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let out = self.tmux(&["capture-pane", "-p", "-J"]).output().unwrap();
            let screen = String::from_utf8_lossy(&out.stdout).into_owned();
            if screen.contains(text) {
                return screen;
            }
            assert!(start.elapsed() < TIME_LIMIT, "no {text:?} in\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

/// Script that runs the view, and then prints its exit code and whether the terminal is as before.
fn script(arguments: &str) -> String {
    let tuff = env!("CARGO_BIN_EXE_tuff");
    format!(
        "before=$(stty -g)\n{tuff} explore {arguments}\necho \"code $?\"\n[ \"$before\" = \"$(stty -g)\" ] && echo restored\nsleep 100\n"
    )
}

#[test]
fn images_are_explored_and_extracted_in_a_terminal() {
    let place = Place::with_image("explore");
    let Some(window) = Window::new(&place, &script("i")) else {
        return;
    };
    window.wait("> dir/");
    window.keys(&["/", "hello-again", "Enter", "Enter"]);
    window.wait("/dir/hello-again");
    window.keys(&["q", "/", "odd", "Enter"]);
    window.wait(r"odd\xff");
    window.keys(&["/", "text", "Enter"]);
    window.wait("shared with /many/copy");
    window.keys(&["e", "Enter"]);
    window.wait("1 file extracted to extracted");
    let text = fs::read_to_string(place.path("extracted/dir/text")).unwrap();
    assert!(text == crate::common::text());
    window.keys(&["q"]);
    let screen = window.wait("restored");
    assert!(screen.contains("code 0"), "{screen}");
}

#[test]
fn interrupts_and_signals_restore_the_terminal() {
    let place = Place::with_image("explore-signals");
    let Some(window) = Window::new(&place, &script("i")) else {
        return;
    };
    window.wait("> dir/");
    window.keys(&["C-c"]);
    let screen = window.wait("restored");
    assert!(screen.contains("code 130"), "{screen}");
    drop(window);
    let line = format!(
        "before=$(stty -g)\n(sleep 1; kill -TERM $(cat pid)) &\nsh -c 'echo $$ > pid; exec {} explore i'\necho \"code $?\"\n[ \"$before\" = \"$(stty -g)\" ] && echo restored\nsleep 100\n",
        env!("CARGO_BIN_EXE_tuff")
    );
    if let Some(window) = Window::new(&place, &line) {
        let screen = window.wait("restored");
        assert!(screen.contains("code 130"), "{screen}");
    }
}

#[test]
fn two_images_are_compared_in_a_terminal() {
    let place = Place::with_image("explore-compare");
    fs::create_dir(place.path("more")).unwrap();
    fs::write(place.path("more/added"), "new\n").unwrap();
    place.text(&["build", "-q", "i", "more", "new"]);
    let Some(window) = Window::new(&place, &script("i new")) else {
        return;
    };
    window.wait("1 added, 0 removed");
    window.keys(&["/", "added", "Enter"]);
    window.wait("+     added");
    window.keys(&["Tab"]);
    window.keys(&["q"]);
    window.wait("restored");
}

#[test]
fn without_a_terminal_there_is_one_sentence() {
    let place = Place::with_image("explore-pipe");
    let out = place.run(&["explore", "i"]);
    assert_eq!((code(&out), &out.stdout[..]), (2, &b""[..]));
    let message = stderr(&out);
    assert!(
        message.starts_with("tuff: standard output is not a terminal; "),
        "{message}"
    );
    assert_eq!(
        (message.lines().count(), message.contains('\x1b')),
        (1, false)
    );
}

#[test]
fn files_that_are_no_images_leave_the_terminal_alone() {
    let place = Place::with_image("explore-damage");
    let Some(window) = Window::new(&place, &script("m/tree.mtree")) else {
        return;
    };
    let screen = window.wait("restored");
    assert!(
        screen.contains("not an EROFS image") && screen.contains("code 3"),
        "{screen}"
    );
}

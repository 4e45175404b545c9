//! Terminal of the view. It is restored however the view ends: by return, error, signal or panic.

use ratatui::{DefaultTerminal, Frame};
use tuff_erofs::{Error, Result};

/// Terminal in raw mode with the alternate screen, restored on drop and on a panic.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Switches the terminal to raw mode and the alternate screen.
    pub(super) fn start() -> Result<Self> {
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(e) => {
                let _ = ratatui::try_restore();
                Err(Error::io("terminal", "cannot be used", e))
            }
        }
    }

    /// Draws a frame on the alternate screen.
    pub(super) fn draw(&mut self, f: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        let drawn = self.0.draw(f);
        drawn.map_err(|e| Error::io("terminal", "cannot write", e))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};
    use tuff_testkit::skipped;

    /// Set in the process that runs in a terminal.
    const IN_TERMINAL: &str = "TUFF_TEST_IN_TERMINAL";
    const NAME: &str = "cmd::explore::terminal::tests::a_panic_restores_the_terminal";

    #[test]
    fn a_panic_restores_the_terminal() {
        if std::env::var_os(IN_TERMINAL).is_some() {
            let _screen = Screen::start().unwrap();
            panic!("on purpose");
        }
        let dir = std::env::temp_dir().join(format!("tuff-explore-panic-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let test = std::env::current_exe().unwrap();
        let line = format!(
            "before=$(stty -g)\n{IN_TERMINAL}=1 {} --exact {NAME} --nocapture\n[ \"$before\" = \"$(stty -g)\" ] && echo restored\nsleep 100\n",
            test.display()
        );
        std::fs::write(dir.join("run.sh"), line).unwrap();
        let tmux = |args: &[&str]| {
            let mut tmux = Command::new("tmux");
            tmux.current_dir(&dir).env_remove("TMUX");
            tmux.args(["-S", "socket"]).args(args).output()
        };
        let start = [
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "30",
            "sh run.sh",
        ];
        let screen = match tmux(&start) {
            Err(e) => {
                skipped(format_args!("tmux: {e}"));
                None
            }
            Ok(_) => {
                let start = Instant::now();
                loop {
                    let screen = tmux(&["capture-pane", "-p"]).unwrap().stdout;
                    let screen = String::from_utf8_lossy(&screen).into_owned();
                    let is_late = start.elapsed() > Duration::from_secs(30);
                    if screen.contains("restored") || is_late {
                        break Some(screen);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        };
        let _ = tmux(&["kill-server"]);
        let _ = std::fs::remove_dir_all(&dir);
        if let Some(screen) = screen {
            // The main screen has the message, so the alternate one was left.
            assert!(screen.contains("on purpose"), "{screen}");
            assert!(screen.contains("restored"), "{screen}");
        }
    }
}

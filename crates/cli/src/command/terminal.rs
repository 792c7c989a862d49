//! The caller's own terminal while it is the terminal of a job: keys go to the job as they are, and the modes that it had
//! are restored whatever happens.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use api::Window;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;

/// Whether lines that are said to the user need a carriage return.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// What ends a line on standard error now.
pub(crate) fn line_end() -> &'static str {
    if IS_RAW.load(Ordering::Relaxed) { "\r\n" } else { "\n" }
}

/// Whether somebody sits here.
pub(crate) fn is_here() -> bool {
    isatty(io::stdin()) && isatty(io::stdout())
}

/// How large it is.
pub(crate) fn window() -> Window {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or(Window::USUAL, |size| Window { rows: size.ws_row.into(), columns: size.ws_col.into() })
}

/// The terminal in the mode in which every key is passed on as it is. Dropped, it is as it was before.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> Result<Raw, Failure> {
        let before = tcgetattr(io::stdin()).context("cannot ask for the modes of the terminal")?;
        let raw = Raw { before };
        raw.again()?;
        IS_RAW.store(true, Ordering::Relaxed);
        Ok(raw)
    }

    /// After another program had the terminal.
    pub(crate) fn again(&self) -> Result<(), Failure> {
        let mut modes = self.before.clone();
        modes.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &modes).context("cannot set the modes of the terminal")?;
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        io::stdout().flush().ok();
        // A terminal that is gone has no modes.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
        IS_RAW.store(false, Ordering::Relaxed);
    }
}

/// Finds `~.` at the beginning of a line among the keys, by which a user leaves. `~~` is one `~`.
#[derive(Debug)]
pub(crate) struct Escape {
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    LineStart,
    AfterTilde,
    InLine,
}

impl Escape {
    pub(crate) fn new() -> Escape {
        Escape { place: Place::LineStart }
    }

    /// What of these keys is meant for the job, and whether the user leaves.
    pub(crate) fn take(&mut self, keys: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(keys.len() + 1);
        for &key in keys {
            let before = self.place;
            self.place = match (before, key) {
                (Place::LineStart, b'~') => Place::AfterTilde,
                (Place::AfterTilde, b'.') => return (passed, true),
                (_, b'\r' | b'\n') => Place::LineStart,
                _ => Place::InLine,
            };
            if before == Place::AfterTilde && key != b'~' {
                passed.push(b'~');
            }
            if self.place != Place::AfterTilde {
                passed.push(key);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pieces: &[&str]) -> (String, bool) {
        let (mut escape, mut all) = (Escape::new(), String::new());
        for piece in pieces {
            let (passed, leaves) = escape.take(piece.as_bytes());
            all += std::str::from_utf8(&passed).unwrap();
            if leaves {
                return (all, true);
            }
        }
        (all, false)
    }

    #[test]
    fn a_tilde_and_a_dot_leave_at_the_beginning_of_a_line_only() {
        assert_eq!(taken(&["ls\r", "~", "."]), ("ls\r".into(), true));
        assert_eq!(taken(&["~."]), (String::new(), true));
        assert_eq!(taken(&["ls ~.\r"]), ("ls ~.\r".into(), false));
        assert_eq!(taken(&["cd\r~", "/a\r"]), ("cd\r~/a\r".into(), false));
        assert_eq!(taken(&["\r~", "~.\r"]), ("\r~.\r".into(), false));
    }
}

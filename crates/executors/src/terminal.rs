//! A terminal for a worker: the supervisor holds one end, and the worker reads and writes the other. The kernel between them
//! echoes, edits lines and turns Ctrl-C into a signal; once the supervisor's end is closed, it hangs up on the worker.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Gid, Uid, fchown};
use rustix::process::ioctl_tiocsctty;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde::{Deserialize, Serialize};

use crate::Account;

/// How large a terminal is, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub rows: u16,
    pub columns: u16,
}

/// A new terminal. Neither end is inherited by other programs.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// The end at which somebody types and looks.
    pub(crate) master: File,
    /// The end of the programs.
    pub(crate) slave: OwnedFd,
}

impl Terminal {
    /// A terminal that belongs to the job's user: programs also open it by its name.
    pub(crate) fn open(window: Window, account: Option<&Account>) -> io::Result<Terminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        if let Some(account) = account.filter(|account| account.uid != rustix::process::geteuid().as_raw()) {
            fchown(&slave, Some(Uid::from_raw(account.uid)), None::<Gid>)?;
        }
        set_window(&master, window)?;
        Ok(Terminal { master: File::from(master), slave })
    }
}

/// The programs at the terminal are told if the size is another.
pub(crate) fn set_window(master: impl AsFd, window: Window) -> io::Result<()> {
    let size = Winsize { ws_row: window.rows, ws_col: window.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

/// Makes it the terminal of the session that this process leads.
pub(crate) fn take_for_session(slave: impl AsFd) -> io::Result<()> {
    Ok(ioctl_tiocsctty(slave)?)
}

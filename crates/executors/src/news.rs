//! A word from a supervisor to the service: a datagram that says which run to look at. It may get lost; the service
//! looks at every run each second anyway.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::Run;

use crate::ExecutorError;
use crate::private::{PRIVATE_FILE, tighten};
use crate::run_dir::{name_of, run_named};

const NAME: &str = "news.sock";

/// Tells whoever listens that there is news of a run. Nobody listening is fine.
pub(crate) fn tell(data_dir: &Path, run: Run, what: &str) {
    let told = Door::open(data_dir).and_then(|door| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to(format!("{} {what}", name_of(run)).as_bytes(), door.path())
    });
    if let Err(error) = told {
        tracing::debug!(%run, %error, "nobody hears of a run's news");
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixDatagram,
}

impl Listener {
    pub(crate) fn open(data_dir: &Path) -> Result<Listener, ExecutorError> {
        let bind = || {
            let door = Door::open(data_dir)?;
            match std::fs::remove_file(door.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let socket = UnixDatagram::bind(door.path())?;
            tighten(&door.path(), PRIVATE_FILE)?;
            Ok(socket)
        };
        let socket = bind().map_err(ExecutorError::file("listen at", &data_dir.join(NAME)))?;
        Ok(Listener { socket })
    }

    /// The next run there is news of, or none within `patience`.
    pub(crate) fn next(&self, patience: Duration) -> io::Result<Option<Run>> {
        self.socket.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        let mut buffer = [0; 128];
        match self.socket.recv(&mut buffer) {
            Ok(count) => Ok(std::str::from_utf8(&buffer[..count])
                .ok()
                .and_then(|text| run_named(text.split_once(' ').map_or(text, |(name, _)| name)))),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A way to the socket that is short enough for its address, however long the path of the data directory is.
struct Door {
    dir: File,
}

impl Door {
    fn open(data_dir: &Path) -> io::Result<Door> {
        File::open(data_dir).map(|dir| Door { dir })
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/{NAME}", self.dir.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use cluster::ClaimId;

    use super::*;

    #[test]
    fn news_arrive_in_a_directory_with_a_long_path() {
        let root = tempfile::tempdir().unwrap();
        let data_dir = root.path().join("d".repeat(200));
        std::fs::create_dir(&data_dir).unwrap();
        let listener = Listener::open(&data_dir).unwrap();
        let run = Run { claim: ClaimId(7), attempt: 1 };
        tell(&data_dir, run, "started");
        assert_eq!(listener.next(Duration::from_secs(5)).unwrap(), Some(run));
        assert_eq!(listener.next(Duration::from_millis(1)).unwrap(), None);
    }

    #[test]
    fn a_listener_takes_the_place_of_one_that_crashed() {
        let data_dir = tempfile::tempdir().unwrap();
        let first = Listener::open(data_dir.path()).unwrap();
        let second = Listener::open(data_dir.path());
        assert!(second.is_ok());
        drop(first);
    }
}

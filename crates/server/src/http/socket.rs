//! The socket in the data directory: who may use it, and how it comes to be there without ever being open to others.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::SocketAddr;
use std::path::Path;

use nix::unistd::{Group, geteuid};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use crate::error::ServerError;

/// The table `[socket]` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct SocketConfig {
    /// The group that may use it; without one, that of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Who may use it, in octal, like "0660". By default everyone if the service runs as root, its own user otherwise,
    /// and its user and the group if one is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

impl SocketConfig {
    /// What is wrong with it, by the name of the key.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.mode()?;
        self.group_id().map(drop)
    }

    /// Listens. A socket that was left behind by a service that was killed is replaced: the journal's lock says that none
    /// is alive.
    pub(super) fn listen(&self, path: &Path) -> Result<UnixListener, ServerError> {
        let cannot = |message: String| ServerError::Listen { address: path.display().to_string(), message };
        check_path(path)?;
        let (mode, group) = (self.mode().map_err(cannot)?, self.group_id().map_err(cannot)?);
        let listener = bind(path, mode, group).map_err(|error| cannot(error.to_string()))?;
        tracing::info!(socket = %path.display(), "listening");
        Ok(listener)
    }

    fn mode(&self) -> Result<u32, String> {
        let Some(text) = &self.mode else {
            return Ok(match &self.group {
                Some(_) => 0o660,
                // The kernel says who connects, so everyone may where jobs can be run as their users.
                None if geteuid().is_root() => 0o666,
                None => 0o600,
            });
        };
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
        let expected = "expected reading and writing for its owner and perhaps others in octal, like \"0660\"";
        mode.ok_or_else(|| format!("socket.mode: {expected}, found `{text}`"))
    }

    fn group_id(&self) -> Result<Option<u32>, String> {
        let Some(name) = &self.group else { return Ok(None) };
        let found =
            Group::from_name(name).map_err(|error| format!("socket.group: cannot look up `{name}`: {error}"))?;
        let found = found.ok_or_else(|| format!("socket.group: there is no group `{name}` on this machine"))?;
        Ok(Some(found.gid.as_raw()))
    }
}

/// The system takes short paths only, and clients need the whole of it.
pub(crate) fn check_path(path: &Path) -> Result<(), ServerError> {
    let cannot = |error: io::Error| ServerError::Listen {
        address: path.display().to_string(),
        message: format!("{error}: choose a data directory with a shorter path"),
    };
    SocketAddr::from_pathname(path).map(drop).map_err(cannot)
}

/// The socket is made in a directory that only its owner may enter, and moves to its place when it is as it should be.
fn bind(path: &Path, mode: u32, group: Option<u32>) -> io::Result<UnixListener> {
    // Short: the length of a socket's path is limited.
    let nook = path.with_file_name(".s");
    let made = nook.join("s");
    match DirBuilder::new().mode(0o700).create(&nook) {
        // It was left behind by a service that was killed just then.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir_all(&nook)?;
            DirBuilder::new().mode(0o700).create(&nook)?;
        }
        done => done?,
    }
    let listener = UnixListener::bind(&made)?;
    if group.is_some() {
        chown(&made, None, group)?;
    }
    fs::set_permissions(&made, Permissions::from_mode(mode))?;
    fs::rename(&made, path)?;
    fs::remove_dir(&nook)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    fn config(group: Option<&str>, mode: Option<&str>) -> SocketConfig {
        SocketConfig { group: group.map(Into::into), mode: mode.map(Into::into) }
    }

    #[tokio::test]
    async fn the_socket_has_the_mode_that_is_configured_and_takes_the_place_of_an_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("moira.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let _listener = config(None, Some("0640")).listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(UnixStream::connect(&path).is_ok());
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["moira.sock"], "nothing else is left");
    }

    #[tokio::test]
    async fn what_a_service_left_behind_when_it_was_killed_is_no_hindrance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("moira.sock");
        fs::create_dir(folder.path().join(".s")).unwrap();
        fs::write(folder.path().join(".s/s"), "").unwrap();
        let _listener = config(None, None).listen(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |group, mode| config(group, mode).check().unwrap_err();
        assert_eq!(
            wrong(Some("no-such-group"), None),
            "socket.group: there is no group `no-such-group` on this machine"
        );
        for mode in ["", "rw", "0999", "0060", "4660", "0777", "-1"] {
            assert!(wrong(None, Some(mode)).starts_with("socket.mode: expected "), "{mode}");
        }
        assert_eq!(config(Some("root"), None).mode(), Ok(0o660));
        assert!(config(None, None).check().is_ok());
    }
}

//! By what a client shows who it is where the kernel cannot: a token, and whom it is shown to. It comes from a file that
//! nobody else can read, never from a command line, which everybody can.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::User;
use serde::Deserialize;

use super::address::{Address, data_dir};
use crate::error::Error;

/// Much longer than any token.
const LONGEST: u64 = 4096;

/// What the environment and the user's configuration say.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    token_file: Option<PathBuf>,
    /// Whose process may be shown the token, besides root's.
    trusted: Vec<u32>,
}

/// The file `moira/client.toml` below the user's folder for configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UserConfig {
    /// Where the service is, like `MOIRA_SERVER`.
    pub(super) server: Option<String>,
    /// Where the token is, like `MOIRA_TOKEN_FILE`.
    token_file: Option<PathBuf>,
    /// The user that the service runs as.
    service_user: Option<String>,
}

impl UserConfig {
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<UserConfig, Error> {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
        let Some(folder) = folder.or_else(|| set("HOME").map(|home| home.join(".config"))) else {
            return Ok(UserConfig::default());
        };
        let path = folder.join("moira/client.toml");
        let wrong = |message: String| Error::Credentials { path: path.clone(), message };
        match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|error| wrong(error.to_string().trim_end().to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(UserConfig::default()),
            // A job of another user may have our home in its environment: what it may not read is not meant for it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(UserConfig::default()),
            Err(error) => Err(wrong(error.to_string())),
        }
    }
}

impl Credentials {
    pub(super) fn find(config: UserConfig, variable: impl Fn(&str) -> Option<OsString>) -> Result<Credentials, Error> {
        let said = variable("MOIRA_TOKEN_FILE").filter(|value| !value.is_empty()).map(PathBuf::from);
        let mut trusted: Vec<u32> = config.service_user.iter().map(|name| uid_of(name)).collect::<Result<_, _>>()?;
        let owner = data_dir(variable).and_then(|folder| fs::metadata(folder).ok()).map(|folder| folder.uid());
        trusted.extend(owner);
        Ok(Credentials { token_file: said.or(config.token_file), trusted })
    }

    /// The token to show at this address; none if there is none, or if the kernel says there who we are. An error if it
    /// must not be shown there. Before it is sent, [`Credentials::confirm`] must agree.
    pub(super) fn bearer(&self, address: &Address) -> Result<Option<String>, Error> {
        match (address, &self.token_file) {
            (Address::Unix(_), _) | (_, None) => Ok(None),
            (Address::Tcp { host, port }, Some(file)) => {
                self.listeners(address, host, *port)?;
                read(file).map(Some)
            }
        }
    }

    /// Whether the token may go over a connection that has been made: somebody accepted it, so somebody must be seen to
    /// listen. An address that is not understood here, or a table that cannot be read, must not look like nobody.
    pub(super) fn confirm(&self, address: &Address) -> Result<(), Error> {
        let (Address::Tcp { host, port }, Some(_)) = (address, &self.token_file) else { return Ok(()) };
        match self.listeners(address, host, *port)?.is_empty() {
            false => Ok(()),
            true => Err(untrusted(address, "the kernel does not say whose process listens there".into())),
        }
    }

    /// Who listens there: all of them may be told the token. Anybody can listen on a port of this machine while the
    /// service is not there, and would be told it.
    fn listeners(&self, address: &Address, host: &str, port: u16) -> Result<Vec<u32>, Error> {
        let no = |reason: String| untrusted(address, reason);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let targets = match bare.parse::<IpAddr>() {
            Ok(ip) if ip.is_loopback() => vec![ip],
            Err(_) if bare == "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            _ => return Err(no("it is not this machine, and there is no TLS yet".into())),
        };
        let table = |path: &str| {
            table(Path::new(path))
                .map_err(|error| no(format!("cannot see whose process listens there: {path}: {error}")))
        };
        let listeners = listeners(&[table("/proc/net/tcp")?, table("/proc/net/tcp6")?], &targets, port);
        match listeners.iter().find(|uid| **uid != 0 && !self.trusted.contains(uid)) {
            None => Ok(listeners),
            Some(uid) => {
                let user = User::from_uid((*uid).into()).ok().flatten();
                let name = user.map_or_else(|| uid.to_string(), |user| user.name);
                Err(no(format!(
                    "a process of {name} listens there, who is neither root nor the owner of the service's data directory; \
                     if that is right, say `service_user = \"{name}\"` in client.toml"
                )))
            }
        }
    }
}

fn untrusted(address: &Address, reason: String) -> Error {
    Error::Untrusted { address: address.to_string(), reason }
}

/// A table of the kernel's; empty if this kernel has none, as one without IPv6.
fn table(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

fn uid_of(name: &str) -> Result<u32, Error> {
    let user = User::from_name(name).ok().flatten();
    user.map(|user| user.uid.as_raw()).ok_or_else(|| Error::Credentials {
        path: "client.toml".into(),
        message: format!("service_user: there is no user `{name}` on this machine"),
    })
}

/// A secret that others can read is none.
fn read(path: &Path) -> Result<String, Error> {
    let wrong = |message: String| Error::Credentials { path: path.to_path_buf(), message };
    let file = File::open(path).map_err(|error| wrong(format!("cannot read the token: {error}")))?;
    let found = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if found.mode() & 0o077 != 0 {
        return Err(wrong("others may read or change this token: make it yours alone with `chmod 600`".into()));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(|error| wrong(format!("cannot read the token: {error}")))?;
    let token = text.trim();
    let is_one = token.starts_with("moira") && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_one.then(|| token.to_string()).ok_or_else(|| wrong("expected a token as `moira token create` prints it".into()))
}

/// Whose sockets listen on the port, at one of these addresses or at all of them, by the kernel's tables.
fn listeners(tables: &[String], targets: &[IpAddr], port: u16) -> Vec<u32> {
    const LISTEN: &str = "0A";
    let anywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let places: Vec<String> =
        targets.iter().chain(&anywhere).flat_map(|ip| forms(*ip)).map(|ip| written(ip, port)).collect();
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(3) == Some(&LISTEN) && places.iter().any(|place| fields.get(1) == Some(&place.as_str()));
        is_it.then(|| fields.get(7)?.parse().ok()).flatten()
    };
    tables.iter().flat_map(|table| table.lines().skip(1).filter_map(of_line).collect::<Vec<u32>>()).collect()
}

/// The addresses on which a socket takes connections to this one: a socket for IPv6 can take those of IPv4 too.
fn forms(ip: IpAddr) -> Vec<IpAddr> {
    match ip {
        IpAddr::V4(plain) => vec![ip, plain.to_ipv6_mapped().into()],
        IpAddr::V6(_) => vec![ip],
    }
}

/// As the kernel writes addresses: words in the machine's own byte order, in hexadecimal.
fn written(ip: IpAddr, port: u16) -> String {
    let words = |bytes: &[u8]| -> String {
        let word = |word: &[u8]| format!("{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        bytes.chunks(4).map(word).collect()
    };
    let ip = match ip {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    format!("{ip}:{port:04X}")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn of_file(path: &Path, trusted: &[u32]) -> Credentials {
        Credentials { token_file: Some(path.to_path_buf()), trusted: trusted.to_vec() }
    }

    fn token_file(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "moira_0123\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    fn tcp(port: u16) -> Address {
        Address::Tcp { host: "127.0.0.1".into(), port }
    }

    #[test]
    fn the_listener_on_a_port_is_found_in_the_kernels_table() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(listeners(&[table], &[Ipv4Addr::LOCALHOST.into()], port), [own]);
    }

    #[test]
    fn a_socket_for_ipv6_that_takes_connections_of_ipv4_is_found() {
        for place in ["::ffff:127.0.0.1", "::ffff:0.0.0.0", "::"] {
            let listener = TcpListener::bind((place, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let table = fs::read_to_string("/proc/net/tcp6").unwrap();
            let own = nix::unistd::geteuid().as_raw();
            assert_eq!(listeners(&[table], &[Ipv4Addr::LOCALHOST.into()], port), [own], "{place}");
        }
    }

    #[test]
    fn a_token_goes_over_no_connection_of_which_nobody_knows_who_accepted_it() {
        let (_folder, path) = token_file(0o600);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = of_file(&path, &[nix::unistd::geteuid().as_raw()]);
        own.confirm(&tcp(port)).unwrap();
        drop(listener);
        assert!(own.bearer(&tcp(port)).unwrap().is_some(), "nobody is there who could be told it");
        let error = own.confirm(&tcp(port)).unwrap_err().to_string();
        assert!(error.contains("no token is sent") && error.contains("whose process listens"), "{error}");
        Credentials::default().confirm(&tcp(port)).unwrap();
    }

    #[test]
    fn a_table_that_cannot_be_read_is_not_one_without_listeners() {
        let folder = tempfile::tempdir().unwrap();
        assert!(table(folder.path()).is_err(), "a directory cannot be read");
        assert_eq!(table(&folder.path().join("tcp6")).unwrap(), "");
    }

    #[test]
    fn one_who_listens_everywhere_is_found_too_and_other_ports_and_states_are_not() {
        let row = |local: &str, state: &str, uid: &str| {
            format!(
                "  0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 1 1 0 100 0 0 10 0"
            )
        };
        let everywhere = written(Ipv4Addr::UNSPECIFIED.into(), 7070);
        let table = ["head".to_string(), row(&everywhere, "0A", "7"), row(&everywhere, "06", "0")].join("\n");
        assert_eq!(listeners(std::slice::from_ref(&table), &[Ipv4Addr::LOCALHOST.into()], 7070), [7]);
        assert!(listeners(&[table], &[Ipv4Addr::LOCALHOST.into()], 7071).is_empty());
    }

    #[test]
    fn a_token_is_shown_to_the_service_and_to_nobody_else() {
        let (_folder, path) = token_file(0o600);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!(of_file(&path, &[own]).bearer(&tcp(port)).unwrap().as_deref(), Some("moira_0123"));
        assert_eq!(of_file(&path, &[]).bearer(&Address::Unix("/x".into())).unwrap(), None);
        let elsewhere = Address::Tcp { host: "example.org".into(), port };
        let error = of_file(&path, &[own]).bearer(&elsewhere).unwrap_err().to_string();
        assert!(error.contains("it is not this machine"), "{error}");
    }

    #[test]
    fn a_token_that_others_can_read_is_refused() {
        let (_folder, path) = token_file(0o644);
        let error = of_file(&path, &[]).bearer(&tcp(1)).unwrap_err().to_string();
        assert!(error.contains("chmod 600") && error.contains("token"), "{error}");
    }

    #[test]
    fn the_environment_wins_over_the_users_configuration() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("moira")).unwrap();
        let path = folder.path().join("moira/client.toml");
        fs::write(&path, "token_file = \"/from/file\"\nservice_user = \"root\"").unwrap();
        let home = folder.path().as_os_str().to_os_string();
        let config = || UserConfig::read(|name| (name == "XDG_CONFIG_HOME").then(|| home.clone())).unwrap();
        let found = Credentials::find(config(), |_| None).unwrap();
        assert_eq!((found.token_file, found.trusted), (Some("/from/file".into()), vec![0]));
        let said = |name: &str| (name == "MOIRA_TOKEN_FILE").then(|| OsString::from("/said"));
        assert_eq!(Credentials::find(config(), said).unwrap().token_file, Some("/said".into()));
        fs::write(&path, "tokenfile = 1").unwrap();
        let error = UserConfig::read(|name| (name == "XDG_CONFIG_HOME").then(|| home.clone())).unwrap_err();
        assert!(error.to_string().contains("client.toml") && error.to_string().contains("tokenfile"), "{error}");
    }
}

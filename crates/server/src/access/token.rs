//! Tokens: by a secret that only its holder knows, whoever comes over the network is known to be a user.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{Role, TokenView, rfc3339};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// How long a token is good if nobody says otherwise.
pub(crate) const TOKEN_LIFE: cluster::Span = cluster::Span::from_hours(30 * 24);
/// How many good ones a user may have at once.
pub(crate) const MOST_TOKENS: usize = 100;

/// A token as it is kept: its secret cannot be found out from it. Times are of the machine's clock, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub id: u32,
    /// Of the secret, in hexadecimal.
    pub sha256: String,
    pub uid: u32,
    pub user: String,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub made_unix_ms: u64,
    pub expires_unix_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_unix_ms: Option<u64>,
}

impl Token {
    pub fn is_good(&self, unix_ms: u64) -> bool {
        self.revoked_unix_ms.is_none() && unix_ms < self.expires_unix_ms
    }

    pub fn view(&self) -> TokenView {
        let moment = |unix_ms: u64| rfc3339(i64::try_from(unix_ms).unwrap_or(i64::MAX));
        TokenView {
            id: self.id,
            user: self.user.clone(),
            role: self.role,
            label: self.label.clone(),
            created_at: moment(self.made_unix_ms),
            expires_at: moment(self.expires_unix_ms),
            revoked_at: self.revoked_unix_ms.map(moment),
        }
    }
}

/// What a token is known by. It is shown once, to whoever asked for it.
pub(crate) struct Secret(String);

impl Secret {
    /// 256 random bits.
    pub(crate) fn draw() -> io::Result<Secret> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Secret(format!("moira_{}", hex(&bytes))))
    }

    pub(crate) fn sha256(&self) -> String {
        sha256_of(&self.0)
    }

    pub(crate) fn reveal(self) -> String {
        self.0
    }
}

pub(crate) fn sha256_of(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// What the machine's clock says.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_drawn_anew_and_only_its_hash_is_kept() {
        let (one, two) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert_ne!(one.sha256(), two.sha256());
        let hash = one.sha256();
        let secret = one.reveal();
        assert_eq!((secret.len(), secret.starts_with("moira_")), (6 + 64, true));
        assert_eq!(sha256_of(&secret), hash);
        assert_eq!(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked() {
        let token = Token {
            id: 1,
            sha256: sha256_of("x"),
            uid: 7,
            user: "ann".into(),
            role: Role::User,
            label: None,
            made_unix_ms: 0,
            expires_unix_ms: 1000,
            revoked_unix_ms: None,
        };
        assert!(token.is_good(999) && !token.is_good(1000));
        assert!(!Token { revoked_unix_ms: Some(5), ..token }.is_good(6));
    }
}

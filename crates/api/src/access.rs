//! Who may do what: roles, and tokens as they are asked for and shown.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::duration::Duration;
use crate::problem::FieldFault;

/// What somebody may do with the service. Each role may do everything that the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees that jobs exist, queues and nodes.
    Viewer,
    /// Submits jobs and changes its own.
    #[default]
    User,
    /// Changes jobs of others and nodes.
    Operator,
    /// Changes the policy, sees everything, makes tokens for others.
    Admin,
}

/// A wish for a token. What is left out is chosen by the service: the caller, the caller's role, 30 days.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// For whom; only an admin makes tokens for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub user: Option<String>,
    /// Never above the role of the user it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
    /// What it is for, in its maker's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 100)]
    pub label: Option<String>,
}

/// A token as it is listed: all but its secret, which nobody can show again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    pub id: u32,
    pub user: String,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub created_at: String,
    pub expires_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
}

/// A new token, with its secret: it is shown this one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// What goes behind `Authorization: Bearer`.
    pub secret: String,
    #[serde(flatten)]
    pub token: TokenView,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenPage {
    pub tokens: Vec<TokenView>,
}

const LONGEST_LABEL: usize = 100;
/// Long enough for a project, short enough that a lost token does not stay good for ever.
const LONGEST_LIFE: Duration = Duration::from_secs(366 * 24 * 3600);

impl TokenRequest {
    pub fn check(&self) -> Result<(), FieldFault> {
        if let Some(label) = &self.label
            && (label.chars().count() > LONGEST_LABEL || label.chars().any(char::is_control))
        {
            let expected = format!("expected at most {LONGEST_LABEL} printable characters");
            return Err(FieldFault::new("label", expected));
        }
        match self.expires_in {
            Some(life) if life.span().is_zero() || life > LONGEST_LIFE => {
                Err(FieldFault::new("expires_in", format!("expected up to 366d, found {}", life.span())))
            }
            _ => Ok(()),
        }
    }
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Viewer, Role::User, Role::Operator, Role::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::User => "user",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let role = Role::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| {
            let typed: String = text.chars().take(40).collect();
            let names = Role::ALL.map(Role::as_str);
            format!("expected {}, found `{typed}`{}", names.join(", "), cluster::suggestion(&typed, names))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_ordered_by_what_they_may_do() {
        assert!(Role::ALL.is_sorted());
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        assert!("amin".parse::<Role>().unwrap_err().ends_with("did you mean `admin`?"));
    }

    #[test]
    fn a_token_lives_a_year_at_most_and_its_label_is_printable() {
        let asked =
            |expires_in, label: &str| TokenRequest { expires_in, label: Some(label.into()), ..Default::default() };
        assert!(asked(Some(Duration::from_secs(60)), "laptop").check().is_ok());
        assert_eq!(asked(Some(Duration::from_secs(0)), "x").check().unwrap_err().field, "expires_in");
        assert_eq!(asked(Some(Duration::from_secs(400 * 86_400)), "x").check().unwrap_err().field, "expires_in");
        assert_eq!(asked(None, "\u{1b}[31m").check().unwrap_err().field, "label");
    }
}

//! The part of the configuration that says who has which role, what others see, and how much one user may have.

use std::collections::BTreeMap;

use api::{Quantity, Role};
use serde::{Deserialize, Serialize};

/// The table `[access]`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Access {
    /// The role of those who may connect and whom nothing below names.
    pub everyone: Role,
    /// What is shown of a job to those who neither own it nor are admins.
    pub others_see: OthersSee,
    pub viewer: Members,
    pub user: Members,
    pub operator: Members,
    /// Root and the service's own user are admins in any case.
    pub admin: Members,
    pub ceilings: Ceilings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OthersSee {
    /// Number, name, owner, queue, state, size and times.
    #[default]
    Summary,
    /// Everything, as the owner sees it.
    All,
}

/// Users and groups of the operating system, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Members {
    pub users: Vec<String>,
    pub groups: Vec<String>,
}

/// How much one user may have. Operators and admins are not bound by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceilings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submissions_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submissions_size_per_second: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_per_second: Option<f64>,
    /// For single users, instead of what is said above.
    pub users: BTreeMap<String, Ceiling>,
}

/// The ceilings of one user; what is none has no ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Jobs and tasks of arrays that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_jobs: Option<u32>,
    /// Devices that all live jobs together ask for, each at its largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submissions_per_second: Option<f64>,
    /// How large the descriptions of all jobs may be that are submitted in a second, with their environments. What was
    /// not used in the last minute may be used at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submissions_size_per_second: Option<Quantity>,
    /// Jobs and tasks of arrays that are cancelled, held, released or given another priority, and tokens that are made
    /// or revoked. What was not used in the last ten seconds may be used at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_per_second: Option<f64>,
}

impl Default for Ceilings {
    fn default() -> Ceilings {
        Ceilings {
            priority: None,
            live_jobs: None,
            devices: None,
            // Far more than a person or a script needs, far less than it takes to keep others waiting.
            submissions_per_second: Some(100.0),
            // As large as those hundred usually are, and so little that a day's worth of jobs stays on record.
            submissions_size_per_second: Some(Quantity::new(1 << 20)),
            changes_per_second: Some(100.0),
            users: BTreeMap::new(),
        }
    }
}

impl Access {
    /// The role of a user in these groups.
    pub fn role_of(&self, user: &str, groups: &[String]) -> Role {
        let names = |members: &Members| {
            members.users.iter().any(|named| named == user) || members.groups.iter().any(|named| groups.contains(named))
        };
        let rows = [
            (Role::Admin, &self.admin),
            (Role::Operator, &self.operator),
            (Role::User, &self.user),
            (Role::Viewer, &self.viewer),
        ];
        rows.into_iter().find(|(_, members)| names(members)).map_or(self.everyone, |(role, _)| role)
    }

    pub fn ceiling_of(&self, user: &str, role: Role) -> Ceiling {
        if role >= Role::Operator {
            return Ceiling::default();
        }
        let common = &self.ceilings;
        self.ceilings.users.get(user).copied().unwrap_or(Ceiling {
            priority: common.priority,
            live_jobs: common.live_jobs,
            devices: common.devices,
            submissions_per_second: common.submissions_per_second,
            submissions_size_per_second: common.submissions_size_per_second,
            changes_per_second: common.changes_per_second,
        })
    }

    /// What is wrong with it, if anything.
    pub(crate) fn check(&self) -> Result<(), String> {
        let common = self.ceilings.submissions_per_second;
        let of_users = self.ceilings.users.values().map(|ceiling| ceiling.submissions_per_second);
        let size = self.ceilings.submissions_size_per_second;
        let sizes = self.ceilings.users.values().map(|ceiling| ceiling.submissions_size_per_second);
        if sizes.chain([size]).flatten().any(|size| size == Quantity::default()) {
            return Err("access.ceilings.submissions_size_per_second: expected more than nothing, found 0".into());
        }
        check_rates("submissions_per_second", of_users.chain([common]))?;
        let common = self.ceilings.changes_per_second;
        let of_users = self.ceilings.users.values().map(|ceiling| ceiling.changes_per_second);
        check_rates("changes_per_second", of_users.chain([common]))
    }
}

fn check_rates(name: &str, rates: impl Iterator<Item = Option<f64>>) -> Result<(), String> {
    match rates.flatten().find(|rate| !(*rate > 0.0 && rate.is_finite())) {
        Some(rate) => Err(format!("access.ceilings.{name}: expected a number above 0, found {rate}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Access {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_highest_role_that_names_a_user_counts() {
        let access = access(
            "everyone = \"viewer\"\n[user]\ngroups = [\"ml\"]\n[operator]\nusers = [\"ann\"]\n[admin]\ngroups = [\"wheel\"]",
        );
        let groups = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(access.role_of("bob", &groups(&[])), Role::Viewer);
        assert_eq!(access.role_of("bob", &groups(&["ml"])), Role::User);
        assert_eq!(access.role_of("ann", &groups(&["ml"])), Role::Operator);
        assert_eq!(access.role_of("ann", &groups(&["wheel"])), Role::Admin);
    }

    #[test]
    fn a_user_can_be_held_below_what_everyone_may() {
        let access = access("[viewer]\nusers = [\"guest\"]");
        assert_eq!((access.role_of("guest", &[]), access.role_of("ann", &[])), (Role::Viewer, Role::User));
    }

    #[test]
    fn ceilings_bind_users_and_not_operators() {
        let access = access("[ceilings]\nlive_jobs = 5\n[ceilings.users.ann]\nlive_jobs = 50");
        assert_eq!(access.ceiling_of("bob", Role::User).live_jobs, Some(5));
        assert_eq!(access.ceiling_of("ann", Role::User).live_jobs, Some(50));
        assert_eq!(access.ceiling_of("bob", Role::Operator), Ceiling::default());
    }

    #[test]
    fn a_rate_that_is_none_is_refused() {
        for name in ["submissions_per_second", "changes_per_second"] {
            for text in [format!("[ceilings]\n{name} = 0.0"), format!("[ceilings.users.a]\n{name} = nan")] {
                let wrong = access(&text).check().unwrap_err();
                assert!(wrong.starts_with(&format!("access.ceilings.{name}: expected")), "{wrong}");
            }
        }
        let text = "[ceilings.users.a]\nsubmissions_size_per_second = 0";
        let wrong = access(text).check().unwrap_err();
        assert!(wrong.starts_with("access.ceilings.submissions_size_per_second: expected"), "{wrong}");
    }
}

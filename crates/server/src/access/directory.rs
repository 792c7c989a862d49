//! The users of this machine, as the operating system names them, with the roles that the configuration gives them.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::Role;
use nix::unistd::{Group, Uid, User, geteuid, getgrouplist};

use super::Access;
use crate::fact::Caller;

/// How long an answer of the operating system is taken for the truth: users may live in a directory service, which must
/// not be asked for every request.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// More users than this are not remembered at once.
const MOST_KEPT: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Directory {
    access: Access,
    known: Mutex<HashMap<u32, (Instant, Caller)>>,
}

impl Directory {
    pub(crate) fn new(access: Access) -> Directory {
        Directory { access, known: Mutex::default() }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The user with this number, as somebody who speaks to the service.
    pub(crate) fn caller(&self, uid: u32) -> Caller {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, caller)) = known().get(&uid)
            && at.elapsed() < KEPT_FOR
        {
            return caller.clone();
        }
        // Asked without the lock: a directory service may take its time.
        let caller = self.look_up(uid);
        let mut known = known();
        if known.len() >= MOST_KEPT {
            known.clear();
        }
        known.insert(uid, (Instant::now(), caller.clone()));
        caller
    }

    /// The user of this name; none if there is none.
    pub(crate) fn named(&self, name: &str) -> Option<Caller> {
        let user = User::from_name(name).ok().flatten()?;
        Some(self.caller(user.uid.as_raw()))
    }

    fn look_up(&self, uid: u32) -> Caller {
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let groups = user.as_ref().map_or_else(Vec::new, groups_of);
        let name = user.map_or_else(|| uid.to_string(), |user| user.name);
        let is_ours = uid == 0 || uid == geteuid().as_raw();
        let role = if is_ours { Role::Admin } else { self.access.role_of(&name, &groups) };
        Caller::new(uid, name, role)
    }
}

fn groups_of(user: &User) -> Vec<String> {
    let Ok(name) = CString::new(user.name.clone()) else { return Vec::new() };
    let groups = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.into_iter().filter_map(|group| Group::from_gid(group).ok().flatten()).map(|group| group.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_service_itself_are_admins_and_strangers_are_what_everyone_is() {
        let directory = Directory::new(Access { everyone: Role::Viewer, ..Access::default() });
        assert_eq!(directory.caller(0).role, Role::Admin);
        assert_eq!(directory.caller(geteuid().as_raw()).role, Role::Admin);
        let stranger = directory.caller(3_999_999_999);
        assert_eq!((stranger.name.as_str(), stranger.role), ("3999999999", Role::Viewer));
        assert_eq!(directory.named("root").map(|root| root.uid), Some(0));
        assert!(directory.named("no such user").is_none());
    }
}

//! Control groups, of version 2 or 1, by their files. A group is a set of directories, one for each hierarchy it needs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::Enforcement;

/// Processor time is given out in periods of 100 ms, the kernel's own choice.
const PERIOD_MICROS: f64 = 100_000.0;
/// The kernel refuses less.
const LEAST_QUOTA_MICROS: f64 = 1_000.0;

/// The group of one worker.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    /// Each directory with the files to write there.
    parts: Vec<(PathBuf, Vec<(&'static str, String)>)>,
}

impl Group {
    /// A group under the given means, with limits on processor time and memory; zero bytes is no limit. Without limits it
    /// is there all the same if it `tracks`: whatever a worker's processes do, they cannot leave it.
    pub(crate) fn below(means: &Enforcement, name: &str, cores: Option<f64>, memory: u64, tracks: bool) -> Group {
        let quota = cores.map(|cores| (cores * PERIOD_MICROS).max(LEAST_QUOTA_MICROS) as u64);
        let mut parts = Vec::new();
        match means {
            Enforcement::CgroupV2 { base, limits_memory } => {
                let memory = if *limits_memory { memory } else { 0 };
                let mut files = Vec::new();
                files.extend(quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD_MICROS}"))));
                files.extend((memory > 0).then(|| ("memory.max", memory.to_string())));
                if tracks || !files.is_empty() {
                    parts.push((base.join(name), files));
                }
            }
            Enforcement::CgroupV1 { cpu, memory: memory_base } => {
                let period = || ("cpu.cfs_period_us", PERIOD_MICROS.to_string());
                let files = quota.map(|quota| vec![period(), ("cpu.cfs_quota_us", quota.to_string())]);
                if tracks || files.is_some() {
                    parts.push((cpu.join(name), files.unwrap_or_default()));
                }
                if let (Some(base), true) = (memory_base, memory > 0) {
                    parts.push((base.join(name), vec![("memory.limit_in_bytes", memory.to_string())]));
                }
            }
            Enforcement::Duty | Enforcement::None => {}
        }
        Group { parts }
    }

    pub(crate) fn make(&self) -> io::Result<()> {
        for (dir, files) in &self.parts {
            match fs::create_dir(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            for (name, value) in files {
                fs::write(dir.join(name), value)?;
            }
        }
        Ok(())
    }

    /// Moves the calling process, and so all it will ever start, into the group.
    pub(crate) fn join(&self) -> io::Result<()> {
        self.parts.iter().try_for_each(|(dir, _)| fs::write(dir.join("cgroup.procs"), std::process::id().to_string()))
    }

    pub(crate) fn members(&self) -> Vec<i32> {
        let of_dir = |dir: &Path| fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let lists = self.parts.iter().map(|(dir, _)| of_dir(dir));
        lists.flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()).collect()
    }

    /// Whether the kernel killed a process of it because all together had more memory than they may.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        // Of version 2 and of version 1.
        let files = ["memory.events", "memory.oom_control"];
        let texts = self.parts.iter().flat_map(|(dir, _)| files.map(|file| fs::read_to_string(dir.join(file))));
        texts.flatten().any(|text| oom_kills(&text) > 0)
    }

    /// A group whose last process has just gone may be busy for a moment.
    pub(crate) fn remove(&self) {
        for (dir, _) in &self.parts {
            for _ in 0..50 {
                match fs::remove_dir(dir) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(Duration::from_millis(10)),
                    Ok(()) | Err(_) => break,
                }
            }
            if dir.exists() {
                tracing::warn!(dir = %dir.display(), "cannot remove a control group");
            }
        }
    }
}

fn oom_kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Where this process is in the hierarchy of a version 1 controller, or in that of version 2.
pub(crate) fn hierarchy_of(controller: Option<&str>) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let (root, mount) = mounts.lines().find_map(|line| mounted(line, controller))?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| group_path(line, controller))?;
    // In a container the mount may show a part of the hierarchy only.
    let below = Path::new(path).strip_prefix(root).or(Path::new(path).strip_prefix("/")).ok()?;
    let dir = Path::new(mount).join(below);
    dir.is_dir().then_some(dir)
}

/// Root and mount point of the hierarchy, if this line of `mountinfo` is about it.
fn mounted<'a>(line: &'a str, controller: Option<&str>) -> Option<(&'a str, &'a str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let is_it = match controller {
        None => kind.next() == Some("cgroup2"),
        Some(name) => kind.next() == Some("cgroup") && kind.nth(1)?.split(',').any(|option| option == name),
    };
    let mut place = place.split(' ').skip(3);
    is_it.then_some((place.next()?, place.next()?))
}

/// The path in a line like `3:cpu,cpuacct:/a/b`, or `0::/a/b` for version 2.
fn group_path<'a>(line: &'a str, controller: Option<&str>) -> Option<&'a str> {
    let mut fields = line.splitn(3, ':').skip(1);
    let controllers = fields.next()?;
    let is_it = match controller {
        None => controllers.is_empty(),
        Some(name) => controllers.split(',').any(|known| known == name),
    };
    fields.next().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_by_controller_and_version() {
        let v1 = "31 30 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct";
        assert_eq!(mounted(v1, Some("cpu")), Some(("/", "/sys/fs/cgroup/cpu")));
        assert_eq!(mounted(v1, Some("memory")), None);
        let v2 = "29 23 0:25 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mounted(v2, None), Some(("/docker/x", "/sys/fs/cgroup")));
        assert_eq!(mounted(v1, None), None);
        assert_eq!(group_path("3:cpu,cpuacct:/a/b", Some("cpu")), Some("/a/b"));
        assert_eq!(group_path("0::/user.slice", None), Some("/user.slice"));
    }

    #[test]
    fn a_kill_for_want_of_memory_is_counted_by_both_versions() {
        assert_eq!(oom_kills("low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\n"), 0);
    }

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        let files = |means: Enforcement| {
            let group = Group::below(&means, "g", Some(1.2), 64, true);
            let line = |(dir, files): &(PathBuf, Vec<(&str, String)>)| {
                let files: Vec<String> = files.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("{} {}", dir.display(), files.join(" "))
            };
            group.parts.iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(
            files(Enforcement::CgroupV2 { base: "/b".into(), limits_memory: true }),
            ["/b/g cpu.max=120000 100000 memory.max=64"]
        );
        assert_eq!(
            files(Enforcement::CgroupV1 { cpu: "/c".into(), memory: Some("/m".into()) }),
            ["/c/g cpu.cfs_period_us=100000 cpu.cfs_quota_us=120000", "/m/g memory.limit_in_bytes=64"]
        );
        assert!(files(Enforcement::Duty).is_empty());
    }

    #[test]
    fn a_worker_without_limits_is_in_a_group_by_which_its_processes_are_found() {
        let v1 = || Enforcement::CgroupV1 { cpu: "/c".into(), memory: Some("/m".into()) };
        let v2 = || Enforcement::CgroupV2 { base: "/b".into(), limits_memory: true };
        let dirs = |means: Enforcement, tracks| {
            let group = Group::below(&means, "g", None, 0, tracks);
            group.parts.iter().map(|(dir, files)| (dir.display().to_string(), files.len())).collect::<Vec<_>>()
        };
        assert_eq!((dirs(v1(), true), dirs(v2(), true)), (vec![("/c/g".into(), 0)], vec![("/b/g".into(), 0)]));
        assert!(dirs(v1(), false).is_empty() && dirs(v2(), false).is_empty());
    }
}

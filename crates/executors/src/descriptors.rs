//! Descriptors that were open when this program was started: of the shell or the system that started the service, or of
//! a library that does not close its own. Whoever holds them could read and lock files that are not theirs.

use std::fs;
use std::io;
use std::path::Path;

/// Closes all but the standard three. It must come before this program opens anything itself.
pub(crate) fn close_inherited() -> io::Result<()> {
    let open = listed(Path::new("/proc/self/fd"))?;
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        // The one by which they were listed is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// The numbers that are the names in a folder. One that is missing here might be left open, and be the job's to read.
fn listed(folder: &Path) -> io::Result<Vec<i32>> {
    let cannot = |error: io::Error| {
        let text = format!("cannot list `{}` to close what was inherited: {error}", folder.display());
        io::Error::new(error.kind(), text)
    };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        numbers.extend(entry.map_err(cannot)?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_cannot_be_listed_are_an_error() {
        let own = listed(Path::new("/proc/self/fd")).unwrap();
        assert!([0, 1, 2].iter().all(|standard| own.contains(standard)), "{own:?}");
        let error = listed(Path::new("/proc/self/fd/not-there")).unwrap_err().to_string();
        assert!(error.starts_with("cannot list `/proc/self/fd/not-there` to close what was inherited: "), "{error}");
    }
}

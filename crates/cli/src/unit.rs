//! The unit by which systemd keeps the service running.

use std::path::Path;

/// What goes into the unit.
#[derive(Debug)]
pub(crate) struct Unit<'a> {
    pub(crate) binary: &'a Path,
    pub(crate) data_dir: &'a Path,
    pub(crate) checkpoint_dir: Option<&'a Path>,
    /// Of `moira serve`, besides the data directory.
    pub(crate) options: Vec<String>,
    /// Whether it is for the whole machine, or for one user.
    pub(crate) system: bool,
}

impl Unit<'_> {
    pub(crate) fn text(&self) -> String {
        let data_dir = self.data_dir.display().to_string();
        let words = [self.binary.display().to_string(), "serve".into(), "--data-dir".into(), data_dir.clone()];
        let command: Vec<String> = words.iter().chain(&self.options).map(|word| quoted(word, true)).collect();
        let folders: Vec<String> = [Some(self.data_dir), self.checkpoint_dir]
            .into_iter()
            .flatten()
            .map(|path| quoted(&path.display().to_string(), false))
            .collect();
        let (place, start, target) = match self.system {
            true => ("/etc/systemd/system", "systemctl", "multi-user.target"),
            false => ("~/.config/systemd/user", "systemctl --user", "default.target"),
        };
        format!(
            "# Made by `moira serve --print-unit`. Put it into {place}/moira.service, then:\n\
             #   {start} daemon-reload && {start} enable --now moira\n\
             [Unit]\n\
             Description=Moira, a scheduler for deep-learning clusters\n\
             After=local-fs.target network.target\n\
             RequiresMountsFor={folders}\n\
             \n\
             [Service]\n\
             Type=exec\n\
             ExecStart={command}\n\
             # Jobs outlive the service: when it is stopped or restarted, only its own process is.\n\
             KillMode=process\n\
             # A job that runs out of memory does not take the service along.\n\
             OOMPolicy=continue\n\
             # The service holds jobs to their devices and memory by control groups of its own, beside its own one.\n\
             Delegate=yes\n\
             DelegateSubgroup=service\n\
             TasksMax=infinity\n\
             LimitNOFILE=524288\n\
             UMask=0077\n\
             Restart=on-failure\n\
             RestartSec=2\n\
             # What is asked for wrongly stays wrong.\n\
             RestartPreventExitStatus=2\n\
             \n\
             [Install]\n\
             WantedBy={target}\n",
            folders = folders.join(" "),
            command = command.join(" "),
        )
    }
}

/// A word as systemd reads it: a percent sign is one, and so is a dollar sign in a command.
fn quoted(word: &str, in_command: bool) -> String {
    let mut text = word.replace('%', "%%");
    if in_command {
        text = text.replace('$', "$$");
    }
    let plain = |letter: char| letter.is_alphanumeric() || "/-_.,:=%$@+".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    let escaped: String = text
        .chars()
        .map(|letter| match letter {
            '"' | '\\' => format!("\\{letter}"),
            '\n' => "\\n".into(),
            letter => letter.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit<'static> {
        Unit {
            binary: Path::new("/usr/local/bin/moira"),
            data_dir: Path::new("/var/lib/moira"),
            checkpoint_dir: None,
            options: Vec::new(),
            system: true,
        }
    }

    #[test]
    fn the_unit_in_the_documentation_is_the_one_that_is_printed() {
        assert_eq!(unit().text(), include_str!("../../../docs/moira.service"));
    }

    #[test]
    fn words_reach_the_service_as_they_are() {
        let options = vec!["--config".into(), "/etc/my conf\"s/50%/$HOME.toml".into()];
        let unit = Unit { options, checkpoint_dir: Some(Path::new("/scratch space")), ..unit() };
        let text = unit.text();
        let command = "ExecStart=/usr/local/bin/moira serve --data-dir /var/lib/moira --config \
                       \"/etc/my conf\\\"s/50%%/$$HOME.toml\"\n";
        assert!(text.contains(command), "{text}");
        assert!(text.contains("RequiresMountsFor=/var/lib/moira \"/scratch space\"\n"), "{text}");
    }
}

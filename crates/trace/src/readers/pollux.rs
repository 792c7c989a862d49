//! Workloads of Pollux (Qiao et al., OSDI 2021) and Sia (Subramanya et al., SOSP 2023), which name applications, sizes
//! and batches, but no run times: those come from measured profiles, which are not part of the workload.

use std::collections::HashMap;
use std::path::Path;

use cluster::Span;

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    Gathering, Job, MOST_GPUS, Request, Wanted, no_gpus, required_gpus, required_seconds, span,
};
use crate::table::{Header, Layout, Separator, Table};

pub(crate) const OPTIONS: &[&str] = &["durations"];

const TIME: usize = 0;
const APPLICATION: usize = 1;
const REPLICAS: usize = 2;
const BATCH: usize = 3;
const NAME: usize = 4;
const WORKLOAD: Layout = Layout {
    columns: &["time", "application", "num_replicas", "batch_size", "name", "category"],
    required: 4,
    separator: Separator::Comma,
    header: Header::Loose,
};

const DURATION: usize = 1;
const DURATIONS: Layout = Layout {
    columns: &["application", "duration_s", "num_replicas", "batch_size"],
    required: 2,
    separator: Separator::Comma,
    header: Header::Strict,
};

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let found = head.has_all(&["time", "application", "num_replicas", "batch_size"]);
    found.then(|| "the header has time, application, num_replicas and batch_size (Sia's is the same)".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let mut table = Table::lay_out(request.path, WORKLOAD)?;
    let Some(path) = request.options.get("durations") else {
        let what = "the workload names applications and no run times, which need measured profiles: add \
                    `?durations=PATH` with a table of nominal ones (application,num_replicas,batch_size,duration_s)";
        return Err(Error::File { file: table.file().into(), what: what.into() });
    };
    let durations = read_durations(Path::new(path))?;
    gathering.id_column = table.name(NAME).into();
    gathering.assume(format!("work is what {path} says an application takes, not what was measured in this workload"));
    gathering
        .assume("jobs are rigid at the replicas they ask for: what other sizes and batches would do needs profiles");
    gathering.assume("interruptions cost nothing: the workload does not say how long a restart takes");
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, REPLICAS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, REPLICAS))? else {
            return Ok(None);
        };
        let submitted = required_seconds(row, TIME)?;
        let application = row.required(APPLICATION, "an application")?;
        let batch = row.whole(BATCH, 1..=u32::MAX)?;
        // The narrowest row that fits.
        let keys = [(Some(gpus), batch), (Some(gpus), None), (None, batch), (None, None)];
        let found = keys.iter().find_map(|&(gpus, batch)| durations.get(&(application.to_string(), gpus, batch)));
        let unknown = || {
            row.fault(
                APPLICATION,
                format!("an application whose run time with {gpus} GPUs is in the table of durations"),
                application,
            )
        };
        let work = *found.ok_or_else(unknown)?;
        let id = row.text(NAME).map(String::from);
        Ok(Some(Job { id, ..Job::new(row.line, submitted, work, gang) }))
    })?;
    gathering.finish()
}

type Durations = HashMap<(String, Option<u32>, Option<u32>), Span>;

/// Run times by application, and where the table says so by replicas and batch; empty cells stand for any.
fn read_durations(path: &Path) -> Result<Durations, Error> {
    let mut table = Table::lay_out(path, DURATIONS)?;
    let mut durations = Durations::new();
    while let Some(row) = table.next_row()? {
        let application = row.required(0, "an application")?.to_string();
        let key = (application, row.count(2, 1..=MOST_GPUS)?, row.whole(3, 1..=u32::MAX)?);
        durations.insert(key, span(required_seconds(&row, DURATION)?));
    }
    Ok(durations)
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{fault, lines};

    const WORKLOAD: &str = "name,time,application,num_replicas,batch_size\n\
                            cifar10-0,107,cifar10,6,2048\nncf-1,135,ncf,1,32768\n";

    #[test]
    fn run_times_have_to_be_brought() {
        let error = fault("pollux", WORKLOAD, "");
        assert!(error.starts_with("FILE: the workload names applications and no run times"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.csv");
        std::fs::write(&path, "application,num_replicas,batch_size,duration_s\ncifar10,,,900\ncifar10,6,,300\n")
            .unwrap();
        let options = format!("durations={}", path.display());
        let expected = "FILE:3: column `application`: expected an application whose run time with 1 GPUs is in the table \
                        of durations, found ncf";
        assert_eq!(fault("sia", WORKLOAD, &options), expected);
        assert_eq!(
            lines("sia", WORKLOAD, &format!("{options}&skip_bad_rows=true")),
            ["1m47s cifar10-0 unknown 6 300s"]
        );
    }
}

//! Traces of Gavel's programs (Narayanan et al., OSDI 2020): ten fields between tabs, without a header; and the reduced
//! table of its Philly traces. They count steps: how long a step takes is in another file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use cluster::{Bytes, Cluster, Span, Weight};
use perf::{Rates, ScalingLaw, Speed};

use crate::Workload;
use crate::error::{Error, shown};
use crate::readers::auto::Head;
use crate::readers::gather::{
    FREE_INTERRUPTIONS, Gathering, Job, Request, Wanted, Work, no_gpus, required_gpus, required_seconds,
};
use crate::readers::json::Json;
use crate::table::{Layout, Row, Separator, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["throughputs", "reference", "step_s", "ends"];

pub(crate) const MOST_STEPS: u64 = 1 << 52;

columns! {
    COLUMNS:
    TYPE = "job_type", COMMAND = "command", DIRECTORY = "working_directory", STEPS_ARGUMENT = "num_steps_arg",
    NEEDS_DATA = "needs_data_dir", STEPS = "total_steps", GPUS = "scale_factor", WEIGHT = "priority_weight", SLO = "SLO",
    ARRIVAL = "arrival_time_s", VC = "vc",
}
const TRACE: Layout = Layout::bare(COLUMNS.split_at(VC).0, Separator::Tab);
/// The same columns, of which the table has some, and one more.
const REDUCED: Layout = Layout::named(COLUMNS, 1);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    if head.has_all(&["vc", "job_type", "total_steps", "scale_factor"]) {
        return Some(format!("the header has {}", head.header()));
    }
    let fields: Vec<&str> = head.first_line().split('\t').collect();
    let figure = |index: usize| fields[index].trim().parse::<f64>().is_ok();
    let trace = fields.len() == 10 && [STEPS, GPUS, WEIGHT, SLO, ARRIVAL].into_iter().all(figure);
    trace.then(|| "lines have ten fields between tabs, the last five of them numbers".into())
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let reduced = Head::of(request.path)?.has("job_type");
    let mut table = Table::lay_out(request.path, if reduced { REDUCED } else { TRACE })?;
    for column in [STEPS, GPUS, ARRIVAL] {
        if !table.has(column) {
            let what = format!("missing column `{}`", table.name(column));
            return Err(Error::Line { file: table.file().into(), line: 1, what });
        }
    }
    let mut steps = Steps::new(request, table.file())?;
    gathering.assume(steps.assumption.clone());
    assume_as_gavel(&mut gathering);
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, GPUS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let submitted = required_seconds(row, ARRIVAL)?;
        row.required(STEPS, "the number of steps")?;
        let iterations = row.whole(STEPS, 1..=MOST_STEPS)?.unwrap_or(1);
        let (speed, rate) = steps.speed(row, gpus)?;
        let slack = if reduced { None } else { slack(row, SLO)? };
        let deadline = slack.map(|slack| Span::from_secs_f64(slack * iterations as f64 / rate));
        let tenant = if reduced { row.text(VC).map(|vc| gathering.name(vc)) } else { None };
        let weight = weight(row, WEIGHT)?;
        let job = Job::new(row.line, submitted, Span::ZERO, gang);
        let work = Work::Steps(speed, iterations);
        Ok(Some(Job { work, tenant, deadline, weight, iterations: Some(iterations), ..job }))
    })?;
    gathering.finish()
}

/// What holds for all traces of such programs.
pub(crate) fn assume_as_gavel(gathering: &mut Gathering<'_>) {
    gathering.assume("jobs are rigid at their scale factor, in which a worker has one GPU");
    gathering.assume_ends("steps");
    gathering.assume(FREE_INTERRUPTIONS);
}

pub(crate) fn weight(row: &Row<'_>, column: usize) -> Result<Weight, Error> {
    let weight = row.real(column, 0.001..=1e6)?;
    Ok(weight.and_then(Weight::from_f64).unwrap_or(Weight::ONE))
}

/// How many times its run time after submission a job is due; -1 is never.
pub(crate) fn slack(row: &Row<'_>, column: usize) -> Result<Option<f64>, Error> {
    let Some(text) = row.text(column) else { return Ok(None) };
    match text.parse::<f64>() {
        Ok(-1.0) => Ok(None),
        Ok(slack) if slack > 0.0 && slack <= 1e6 => Ok(Some(slack)),
        _ => Err(row.fault(column, "-1, or how many times its run time after submission a job is due", text)),
    }
}

/// How fast jobs take their steps.
struct Steps<'a> {
    cluster: &'a Cluster,
    assumption: String,
    /// By kind of GPU, then by type of job and GPUs.
    rates: HashMap<String, HashMap<(String, u32), f64>>,
    reference: String,
    by_kind: bool,
    step_s: Option<f64>,
    known: HashMap<(String, u32), (Arc<Speed>, f64)>,
}

impl<'a> Steps<'a> {
    fn new(request: Request<'a>, file: &str) -> Result<Steps<'a>, Error> {
        let options = request.options;
        let step_s = options.real("step_s")?;
        let cluster = request.cluster;
        let reference = options.get("reference").unwrap_or("v100").to_string();
        let (rates, known) = (HashMap::new(), HashMap::new());
        let mut steps = Steps { cluster, assumption: String::new(), rates, reference, by_kind: false, step_s, known };
        match (options.get("throughputs"), step_s) {
            (Some(path), None) => steps.load(Path::new(path))?,
            (None, Some(step_s)) => {
                steps.assumption = format!("every step of every job takes {step_s} s on all kinds of GPU (step_s)");
            }
            (Some(_), Some(_)) => {
                return Err(options.fault("expected one of `throughputs` and `step_s`, found both".into()));
            }
            (None, None) => {
                let what = "the trace counts steps and does not say how long they take: add \
                            `?throughputs=PATH` with Gavel's table of throughputs, or `?step_s=0.5` for all alike";
                return Err(Error::File { file: file.into(), what: what.into() });
            }
        }
        Ok(steps)
    }

    /// Reads `{kind: {"('type', gpus)": {"null": steps per second, …}}}`.
    fn load(&mut self, path: &Path) -> Result<(), Error> {
        let mut json = Json::open(path)?;
        let rates = &mut self.rates;
        json.members(|json, kind| {
            let table = rates.entry(kind.to_string()).or_default();
            json.members(|json, job| {
                let (line, key) = (json.line(), job_type(job));
                json.members(|json, beside| {
                    if beside != "null" {
                        return json.skip();
                    }
                    let rate = json.scalar()?.unwrap_or_default();
                    let Some(key) = &key else { return Ok(()) };
                    match rate.parse() {
                        Ok(figure) if (0.0..1e9).contains(&figure) => table.insert(key.clone(), figure),
                        _ => {
                            let what = format!("expected steps per second for {}, found {}", shown(job), shown(&rate));
                            return Err(Error::Line { file: json.file().into(), line, what });
                        }
                    };
                    Ok(())
                })
            })
        })?;
        json.end()?;
        if !rates.contains_key(&self.reference) {
            let mut kinds: Vec<&str> = rates.keys().map(String::as_str).collect();
            kinds.sort_unstable();
            let found = shown(&self.reference);
            let what = format!("expected one of {} for `reference`, found {found}", kinds.join(", "));
            return Err(Error::Name(format!("workload gavel: {what}")));
        }
        let file = path.display();
        self.by_kind = self.cluster.kinds().all(|(_, kind)| rates.contains_key(&*kind.name));
        self.assumption = match self.by_kind {
            true => format!("speeds are those of {file} for each kind of GPU of the cluster, wherever the workers are"),
            false => format!(
                "speeds are those of {file} on a {} for all kinds of GPU, as it does not know all of the cluster's (reference=…)",
                self.reference
            ),
        };
        Ok(())
    }

    /// The speed of a job and its rate on the GPU of reference.
    fn speed(&mut self, row: &Row<'_>, gpus: u32) -> Result<(Arc<Speed>, f64), Error> {
        let key = match self.step_s {
            Some(_) => (String::new(), 0),
            None => (row.required(TYPE, "a type of job")?.to_string(), gpus),
        };
        if let Some((speed, rate)) = self.known.get(&key) {
            return Ok((speed.clone(), *rate));
        }
        let of =
            |kind: &str| self.rates.get(kind).and_then(|rates| rates.get(&key)).copied().filter(|&rate| rate > 0.0);
        let unknown = || {
            let expected = format!("a type of job whose speed with {gpus} GPUs the table of throughputs has");
            row.fault(TYPE, expected, &key.0)
        };
        let rate = match self.step_s {
            Some(step_s) => 1.0 / step_s,
            None => of(&self.reference).ok_or_else(unknown)?,
        };
        let rates = match self.by_kind {
            true => Rates::ByKind(self.cluster.kinds().filter_map(|(id, kind)| Some((id, of(&kind.name)?))).collect()),
            false => Rates::Anywhere(rate),
        };
        let speed =
            Speed { rates, scaling: ScalingLaw::Gang, gradients: Bytes::ZERO, noise_scale: None, adaptation: None };
        speed.check().map_err(|_| unknown())?;
        let speed = Arc::new(speed);
        self.known.insert(key, (speed.clone(), rate));
        Ok((speed, rate))
    }
}

/// The type and the GPUs in a key like `('LM (batch size 5)', 2)`.
fn job_type(key: &str) -> Option<(String, u32)> {
    let (name, gpus) = key.strip_prefix('(')?.strip_suffix(')')?.rsplit_once(',')?;
    let name = name.trim().trim_matches(['\'', '"']);
    Some((name.into(), gpus.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{assumes, fault, lines, read};

    const TRACE: &str = "LM (batch size 5)\tpython3 a.py --x 5\tlm\t--steps\t1\t1000\t1\t1\t-1.000000\t0\n\
                         LM (batch size 5)\tpython3 a.py --x 5\tlm\t--steps\t1\t600\t2\t5\t1.200000\t30\n";

    #[test]
    fn steps_need_a_length() {
        let error = fault("gavel", TRACE, "");
        assert!(error.starts_with("FILE: the trace counts steps and does not say how long they take: add"), "{error}");
        let jobs = read("gavel", TRACE, "step_s=0.5").unwrap().jobs;
        assert_eq!((jobs[0].truth.iterations, jobs[0].truth.speed.rates.clone()), (1000, perf::Rates::Anywhere(2.0)));
        let due = jobs[1].spec.deadline.map(cluster::Time::as_secs_f64);
        assert_eq!((due, jobs[1].spec.weight.as_f64()), (Some(390.0), 5.0));
        assert_eq!(jobs[1].spec.ends, cluster::Ends::Itself);
        let jobs = read("gavel", TRACE, "step_s=0.5&ends=iterations").unwrap().jobs;
        assert_eq!(jobs[1].spec.ends, cluster::Ends::Iterations(600));
    }

    #[test]
    fn steps_are_as_long_as_the_table_of_throughputs_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        let text = r#"{"v100": {"('LM (batch size 5)', 1)": {"null": 10.0, "('x', 1)": [1, 2]},
                        "('LM (batch size 5)', 2)": {"null": 4.0}},
               "k80": {"('LM (batch size 5)', 1)": {"null": 1.0}}}"#;
        std::fs::write(&path, text).unwrap();
        let options = format!("throughputs={}", path.display());
        let rates = |text: &str| -> Vec<perf::Rates> {
            read("gavel", text, &options).unwrap().jobs.iter().map(|job| job.speed.rates.clone()).collect()
        };
        assert_eq!(rates(TRACE), [perf::Rates::Anywhere(10.0), perf::Rates::Anywhere(4.0)]);
        assert!(read("gavel", TRACE, &options).unwrap().assumptions[0].contains("on a v100 for all kinds of GPU"));
        let expected = "FILE:2: column `job_type`: expected a type of job whose speed with 4 GPUs the table of throughputs \
                        has, found LM (batch size 5)";
        assert_eq!(fault("gavel", &TRACE.replace("600\t2", "600\t4"), &options), expected);
        let error = fault("gavel", TRACE, &format!("{options}&reference=a100"));
        assert_eq!(error, "workload gavel: expected one of k80, v100 for `reference`, found a100");
    }

    #[test]
    fn the_reduced_table_is_read() {
        let text = "vc,job_type,total_steps,arrival_time_s,scale_factor\nab,LM (batch size 5),100,6.0,2\n";
        let job = read("gavel", text, "step_s=1").unwrap().jobs.remove(0);
        assert_eq!((job.truth.iterations, &*job.spec.user, job.spec.scaling.min()), (100, "ab", 2));
        assert_eq!(lines("gavel", text, "step_s=0.001"), ["6s line2 ab 2 0.1s"]);
    }

    #[test]
    fn a_bad_number_of_steps_names_file_line_and_column() {
        let expected = "FILE:2: column `total_steps`: expected a whole number from 1 to 4503599627370496, found -600";
        assert_eq!(fault("gavel", &TRACE.replace("600", "-600"), "step_s=1"), expected);
        assert!(assumes(
            "gavel",
            &TRACE.replace("600", "-600"),
            "step_s=1&skip_bad_rows=true",
            &format!("left out: {expected}")
        ));
    }
}

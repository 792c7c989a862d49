//! Traces of ElasticFlow (Gu et al., ASPLOS 2023), made from jobs of ten clusters of Microsoft's ITP platform, with
//! deadlines; and the raw lists of those clusters, without.

use cluster::Span;

use crate::Workload;
use crate::error::Error;
use crate::readers::auto::Head;
use crate::readers::gather::{
    FREE_INTERRUPTIONS, Gathering, Job, Request, Wanted, no_gpus, required_gpus, required_seconds, seconds, span,
};
use crate::readers::gavel::MOST_STEPS;
use crate::table::{Layout, Table, columns};

pub(crate) const OPTIONS: &[&str] = &["ends", "deadlines"];

columns! {
    COLUMNS:
    GPUS = "num_gpu", SUBMIT = "submit_time|submission_time", DURATION = "duration", JOB = "job_id",
    DEADLINE = "ddl|deadline", ITERATIONS = "iteration|num_iteration", BEST_EFFORT = "best_effort",
}
const TRACE: Layout = Layout::named(COLUMNS, 3);

pub(crate) fn recognise(head: &Head) -> Option<String> {
    let artifact = head.has_all(&["job_id", "submit_time", "ddl", "num_gpu", "duration"]);
    let published = head.has_all(&["job_id", "submission_time", "num_gpu", "duration"]);
    (artifact || published).then(|| format!("the header has {}", head.header()))
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut gathering = Gathering::new(request)?;
    let keeps = request.options.choice("deadlines", &["keep", "drop"])? == "keep";
    let mut table = Table::lay_out(request.path, TRACE)?;
    gathering.assume("durations are taken as work, on all kinds of GPU");
    gathering.assume("jobs are rigid at the size in the trace: what other sizes would do needs profiles");
    gathering.assume(match (table.has(DEADLINE), keeps) {
        (false, _) => "jobs have no deadlines: the list names none",
        (true, true) => {
            "deadlines are the authors', not the users'; best-effort jobs have none (deadlines=keep; or drop)"
        }
        (true, false) => "deadlines are not looked at (deadlines=drop; or keep)",
    });
    gathering.assume(FREE_INTERRUPTIONS);
    let mut late = 0;
    gathering.read(&mut table, |row, gathering| {
        let gpus = required_gpus(row, GPUS)?;
        let Some(gang) = gathering.gang(Wanted { gpus, ..Wanted::default() }, || no_gpus(row, GPUS))? else {
            return Ok(None);
        };
        let (submitted, work) = (required_seconds(row, SUBMIT)?, required_seconds(row, DURATION)?);
        let best_effort = row.whole(BEST_EFFORT, 0..=1_u8)? == Some(1);
        let due = seconds(row, DEADLINE)?.filter(|_| keeps && !best_effort);
        late += u64::from(due.is_some_and(|due| due <= submitted));
        let deadline: Option<Span> = due.map(|due| span(due - submitted));
        let iterations = row.whole(ITERATIONS, 0..=MOST_STEPS)?;
        let id = row.text(JOB).map(String::from);
        Ok(Some(Job { id, deadline, iterations, ..Job::new(row.line, submitted, span(work), gang) }))
    })?;
    if late > 0 {
        gathering.assume(format!("{late} jobs are due no later than they are submitted: due at once"));
    }
    gathering.finish()
}

#[cfg(test)]
mod tests {
    use crate::readers::tests::{fault, lines, read};

    const TRACE: &str = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort\n\
                         0,0,77215,resnet50,4426,256,1,3930,0\n1,2811,94898,resnet50,9179,256,2,4830,1\n";

    #[test]
    fn deadlines_are_read_except_those_of_best_effort_jobs() {
        assert_eq!(lines("elasticflow", TRACE, ""), ["0s 0 unknown 1 3930s", "46m51s 1 unknown 2 4830s"]);
        let due = |options| -> Vec<Option<f64>> {
            let jobs = read("elasticflow", TRACE, options).unwrap().jobs;
            jobs.iter().map(|job| job.spec.deadline.map(cluster::Time::as_secs_f64)).collect()
        };
        assert_eq!((due(""), due("deadlines=drop")), (vec![Some(4426.0), None], vec![None, None]));
        let first =
            read("elasticflow", &TRACE.replace("0,0,77215", "0,100,77215"), "origin=first").unwrap().jobs.remove(0);
        assert_eq!(first.spec.deadline.map(cluster::Time::as_secs_f64), Some(4326.0));
    }

    #[test]
    fn the_raw_lists_are_read() {
        let text = "job_id,submission_time,duration,num_gpu\n96-5d,1932025,2429,64";
        assert_eq!(lines("elasticflow", text, "origin=first"), ["0s 96-5d unknown 64 2429s"]);
    }

    #[test]
    fn a_negative_time_names_file_line_and_column() {
        let expected = "FILE:3: column `duration`: expected a number from 0 to 3155760000, found -4830";
        assert_eq!(fault("elasticflow", &TRACE.replace("4830", "-4830"), ""), expected);
    }
}

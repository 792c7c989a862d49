//! From rows in the order of a file to jobs in the order of submission, with dependencies resolved.

use std::collections::HashMap;
use std::sync::Arc;

use cluster::{ClaimId, Name};
use perf::TrueJob;

use crate::error::{Error, shown};

/// A job whose dependencies are still names.
pub(crate) struct Pending {
    pub(crate) line: u64,
    pub(crate) id: Option<Name>,
    pub(crate) job: TrueJob,
    pub(crate) after: Vec<Name>,
}

/// The jobs sorted by submission, those of one moment in the order of the file.
pub(crate) fn in_order(file: &str, jobs: Vec<Pending>) -> Result<Vec<TrueJob>, Error> {
    let ids = ids(file, &jobs)?;
    if jobs.iter().all(|job| job.after.is_empty()) {
        // The usual case, in less memory.
        let mut jobs: Vec<TrueJob> = jobs.into_iter().map(|pending| pending.job).collect();
        jobs.sort_by_key(|job| job.submitted);
        return Ok(jobs);
    }
    let needs = needs(file, &jobs, &ids)?;
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&index| jobs[index].job.submitted);
    let mut positions = vec![0; jobs.len()];
    order.iter().enumerate().for_each(|(position, &index)| positions[index] = position);
    check_cycles(file, &jobs, &needs)?;
    check_times(file, &jobs, &needs, &positions)?;
    let mut sorted: Vec<Option<TrueJob>> = (0..jobs.len()).map(|_| None).collect();
    for ((index, Pending { mut job, .. }), needs) in jobs.into_iter().enumerate().zip(needs) {
        if !needs.is_empty() {
            let mut after: Vec<ClaimId> = needs.iter().map(|&need| ClaimId(positions[need] as u32)).collect();
            after.sort_unstable();
            after.dedup();
            job.spec = Arc::new(Arc::unwrap_or_clone(job.spec).run_after(after));
        }
        sorted[positions[index]] = Some(job);
    }
    Ok(sorted.into_iter().map(|job| job.expect("every position is taken by one job")).collect())
}

fn ids(file: &str, jobs: &[Pending]) -> Result<HashMap<Name, usize>, Error> {
    let mut ids = HashMap::new();
    for (index, job) in jobs.iter().enumerate() {
        let Some(id) = &job.id else { continue };
        if let Some(first) = ids.insert(id.clone(), index) {
            let expected = format!("ids that differ (line {} has the same)", jobs[first].line);
            return Err(fault(file, job.line, "id", expected, shown(id)));
        }
    }
    Ok(ids)
}

/// For every job those it waits for, as indices.
fn needs(file: &str, jobs: &[Pending], ids: &HashMap<Name, usize>) -> Result<Vec<Vec<usize>>, Error> {
    let of_job = |job: &Pending| {
        let index = |id: &Name| {
            let unknown = || fault(file, job.line, "after", "ids of other jobs in this file", shown(id));
            ids.get(id).copied().ok_or_else(unknown)
        };
        job.after.iter().map(index).collect()
    };
    jobs.iter().map(of_job).collect()
}

fn check_cycles(file: &str, jobs: &[Pending], needs: &[Vec<usize>]) -> Result<(), Error> {
    let Some(cycle) = cycle(needs) else { return Ok(()) };
    let name = |&index: &usize| jobs[index].id.as_deref().map_or_else(String::new, shown);
    let mut names: Vec<String> = cycle.iter().take(10).map(name).collect();
    if cycle.len() > names.len() {
        names.push(format!("… ({} more)", cycle.len() - names.len()));
    }
    names.push(name(&cycle[0]));
    let found = format!("the cycle {}", names.join(" after "));
    Err(fault(file, jobs[cycle[0]].line, "after", "jobs that do not wait for one another", found))
}

/// Jobs that wait for one another, from the first in the file on; each waits for the next and the last for the first.
fn cycle(needs: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut unmet: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    for (index, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|&need| waiting[need].push(index));
    }
    let mut met: Vec<usize> = (0..needs.len()).filter(|&index| unmet[index] == 0).collect();
    while let Some(index) = met.pop() {
        for &next in &waiting[index] {
            unmet[next] -= 1;
            if unmet[next] == 0 {
                met.push(next);
            }
        }
    }
    // Whoever is left waits for someone who is left: follow that until someone comes again.
    let mut path = vec![(0..needs.len()).find(|&index| unmet[index] > 0)?];
    let mut seen_at: HashMap<usize, usize> = HashMap::new();
    loop {
        let last = path[path.len() - 1];
        if let Some(&start) = seen_at.get(&last) {
            let mut cycle = path[start..path.len() - 1].to_vec();
            let first = (0..cycle.len()).min_by_key(|&place| cycle[place]).unwrap_or(0);
            cycle.rotate_left(first);
            return Some(cycle);
        }
        seen_at.insert(last, path.len() - 1);
        path.push(*needs[last].iter().find(|&&need| unmet[need] > 0).expect("someone who is left"));
    }
}

fn check_times(file: &str, jobs: &[Pending], needs: &[Vec<usize>], positions: &[usize]) -> Result<(), Error> {
    for (index, job) in jobs.iter().enumerate() {
        let Some(&later) = needs[index].iter().find(|&&need| positions[need] > positions[index]) else { continue };
        let id = jobs[later].id.as_deref().map_or_else(String::new, shown);
        let found = match jobs[later].job.submitted == job.job.submitted {
            true => format!("{id}, submitted in the same moment but further down, on line {}", jobs[later].line),
            false => format!("{id}, submitted later, on line {}", jobs[later].line),
        };
        return Err(fault(file, job.line, "after", "jobs submitted before this one", found));
    }
    Ok(())
}

pub(crate) fn fault(file: &str, line: u64, column: &str, expected: impl Into<String>, found: String) -> Error {
    Error::Field { file: file.into(), line, column: column.into(), expected: expected.into(), found }
}

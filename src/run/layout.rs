//! Which lanes a measurement has, and whether its workload fits its targets.

use super::{Job, cpus, verify};
use crate::workload::{Generator, Span, Workload};
use nvpoll_engine::{Engine, EngineError, Geometry, QueueShape, Target};

/// One lane, before it has a thread.
pub(super) struct LanePlan {
    /// One, or several that one worker polls.
    pub(super) targets: std::ops::Range<usize>,
    pub(super) shape: QueueShape,
    pub(super) generator: Generator,
    /// Number among all lanes.
    pub(super) stream: u32,
    pub(super) cpu: Option<usize>,
}

/// Holds the workload against each target and lays out the lanes.
pub(super) fn plan_lanes<E: Engine>(
    job: &Job<'_>,
    engines: &[E],
) -> Result<Vec<LanePlan>, EngineError> {
    let workload = job.workload;
    let mut plans = Vec::new();
    let together = job.drives_per_worker.max(1) as usize;
    let mut dealer = cpus::Dealer::new(job.cpus);
    for (index, drives) in engines.chunks(together).enumerate() {
        let first = index * together;
        let of_drive =
            engines.get(first).and_then(|engine| engine.geometry(workload.bs_bytes).numa_node);
        let node = job.transport.numa.node(of_drive);
        for worker in 0..workload.numjobs {
            let fits = |(engine, (target, _)): (&E, &(Target, u32))| {
                check_fit::<E>(workload, worker, &engine.geometry(workload.bs_bytes), target)
            };
            let targets = job.targets.iter().skip(first);
            let spans: Vec<Span> =
                drives.iter().zip(targets).map(fits).collect::<Result<_, _>>()?;
            let Some((&span, others)) = spans.split_first() else { continue };
            if others.iter().any(|other| *other != span) {
                return Err(EngineError::Usage(
                    "--drives-per-worker: the drives of one worker differ in size, and it uses the same stretch of each; give --size".to_owned(),
                ));
            }
            let stream = plans.len() as u32;
            plans.push(LanePlan {
                targets: first..first + drives.len(),
                shape: QueueShape {
                    worker,
                    depth: workload.iodepth.min(E::INFO.depth_max.unwrap_or(u32::MAX)),
                    io_bytes: workload.bs_bytes,
                },
                generator: Generator::new(workload, span, worker, stream),
                stream,
                cpu: dealer.deal(node),
            });
        }
    }
    check_account(workload, &plans)?;
    Ok(plans)
}

/// Refuses to check the content of more blocks than an account is kept of.
fn check_account(workload: &Workload, plans: &[LanePlan]) -> Result<(), EngineError> {
    let blocks = plans.iter().map(|plan| plan.generator.stretch().1);
    let blocks = blocks.fold(0_u64, u64::saturating_add);
    if !workload.verify || blocks <= verify::BLOCKS_MAX {
        return Ok(());
    }
    Err(EngineError::Usage(format!(
        "--verify keeps account of each block, of {} at most, and here are {blocks}; make --size smaller or --bs larger",
        verify::BLOCKS_MAX
    )))
}

/// Where `worker` of the workload runs on a target of this geometry.
fn check_fit<E: Engine>(
    workload: &Workload,
    worker: u32,
    geometry: &Geometry,
    target: &Target,
) -> Result<Span, EngineError> {
    let usage = |reason: String| EngineError::Usage(format!("{target}: {reason}"));
    let span = workload
        .check()
        .and_then(|()| workload.span_of(worker, geometry.size_bytes, geometry.block_bytes))
        .map_err(|error| usage(error.to_string()))?;
    let by_nature = E::INFO.depth_max.unwrap_or(u32::MAX);
    if geometry.depth_max == 0 {
        let bytes = workload.bs_bytes;
        return Err(usage(format!(
            "an I/O of {bytes} bytes is more than engine {} can send to it in one piece; lower --bs",
            E::INFO.name
        )));
    }
    if workload.iodepth.min(by_nature) > geometry.depth_max {
        let (asked, most) = (workload.iodepth, geometry.depth_max);
        return Err(usage(format!(
            "--iodepth {asked} is more than a queue here holds at this block size; at most {most} (the drive's CAP.MQES, or the engine's limit)"
        )));
    }
    if geometry.queues_max.is_some_and(|most| workload.numjobs > most) {
        let (asked, most) = (workload.numjobs, geometry.queues_max.unwrap_or(0));
        return Err(usage(format!(
            "--numjobs {asked} needs a queue each, and the drive grants {most}; lower it"
        )));
    }
    Ok(span)
}

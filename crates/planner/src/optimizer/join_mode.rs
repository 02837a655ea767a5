//! How a hash join is spread over threads, in place of DataFusion's own choice.
//!
//! *Collected*: one hash table of the whole build side, probed by every thread where its rows come from. *Partitioned*:
//! both sides are first dealt out by key, and each thread joins its part. Dealing out copies every row of both sides, so
//! with few threads it pays only when the build side, which one thread alone inserts, is large beside the probe side.
//! Sides stay as the join order set them.

use crate::rewrites::RewriteTree;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Result, Statistics};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use std::sync::Arc;

/// Costs of a row, relative to each other: inserting it into a hash table, and dealing it out to the thread of its key.
const BUILD: f64 = 40.0;
const DEAL_OUT: f64 = 20.0;

/// Below this a hash table stays in a core's cache, and one thread is done with it before others are started.
const BUILD_ROWS_SMALL: f64 = 32.0 * 1024.0;

#[derive(Debug)]
pub struct JoinMode;

impl PhysicalOptimizerRule for JoinMode {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let threads = config.execution.target_partitions;
        plan.rewrite_up(&mut |node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
            if *join.partition_mode() != PartitionMode::Auto {
                return Ok(Transformed::no(node));
            }
            let mode = choose(join, threads);
            let join = join.builder().with_partition_mode(mode).recompute_properties().build_exec()?;
            Ok(Transformed::yes(join))
        })
        .data()
    }

    fn name(&self) -> &str {
        "join_mode"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn choose(join: &HashJoinExec, threads: usize) -> PartitionMode {
    // NOT IN with NULLs needs to see the whole build side at once.
    if join.null_aware || threads < 2 {
        return PartitionMode::CollectLeft;
    }
    let (Some(build), Some(probe)) = (rows(join.left()), rows(join.right())) else {
        return PartitionMode::Partitioned;
    };
    let threads = threads as f64;
    // Collected, the other threads wait for one to insert everything; partitioned, all share the dealing out.
    let waiting = BUILD * build * (1.0 - 1.0 / threads);
    let dealing = DEAL_OUT * (build + probe) / threads;
    match build <= BUILD_ROWS_SMALL || waiting <= dealing {
        true => PartitionMode::CollectLeft,
        false => PartitionMode::Partitioned,
    }
}

fn rows(plan: &Arc<dyn ExecutionPlan>) -> Option<f64> {
    let statistics: Arc<Statistics> = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    statistics.num_rows.get_value().map(|rows| *rows as f64)
}

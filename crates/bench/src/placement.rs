//! The four placements of the far-memory study: table data and query heap, each near or far.

use crate::engine::Connection;
use crate::workload::Workload;
use tidepool_base::{Error, Result, SqlState};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    pub name: &'static str,
    /// The study's name for it.
    pub title: &'static str,
    pub main_far: bool,
    pub heap_far: bool,
    /// How much slower than `both-near` the study measured a single stream, as a ratio (SAP HANA, TPC-H SF10).
    pub paper_single_stream: Option<f64>,
    /// How much throughput it lost with eight streams, as a ratio.
    pub paper_eight_streams: Option<f64>,
}

pub const PLACEMENTS: [Placement; 4] = [
    Placement {
        name: "both-near",
        title: "Both DRAM",
        main_far: false,
        heap_far: false,
        paper_single_stream: None,
        paper_eight_streams: None,
    },
    Placement {
        name: "main-far",
        title: "Main FAR",
        main_far: true,
        heap_far: false,
        paper_single_stream: Some(0.120),
        paper_eight_streams: Some(0.399),
    },
    Placement {
        name: "heap-far",
        title: "Heap FAR",
        main_far: false,
        heap_far: true,
        paper_single_stream: Some(0.261),
        paper_eight_streams: Some(0.474),
    },
    Placement {
        name: "both-far",
        title: "Both FAR",
        main_far: true,
        heap_far: true,
        paper_single_stream: Some(0.579),
        paper_eight_streams: Some(0.692),
    },
];

impl Placement {
    /// `all`, or names separated by commas.
    pub fn parse_list(list: &str) -> Result<Vec<Placement>> {
        if list.trim() == "all" {
            return Ok(PLACEMENTS.to_vec());
        }
        list.split(',')
            .map(|name| {
                PLACEMENTS.iter().find(|placement| placement.name == name.trim()).copied().ok_or_else(|| {
                    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("there is no placement \"{}\"", name.trim()))
                        .with_hint(
                            "There are both-near, main-far, heap-far and both-far, and all for the four of them.",
                        )
                })
            })
            .collect()
    }

    /// Moves every table. `far` is the tablespace that stands for far.
    pub async fn place_tables(self, connection: &mut Connection, workload: &Workload, far: &str) -> Result<()> {
        let tablespace = if self.main_far { far } else { "near" };
        for table in &workload.tables {
            connection.query(&format!("ALTER TABLE {} SET TABLESPACE {tablespace}", table.name)).await?;
        }
        Ok(())
    }

    /// Says where this session's statements take their heap.
    pub async fn place_heap(self, connection: &mut Connection, far: &str) -> Result<()> {
        let tablespace = if self.heap_far { far } else { "near" };
        connection.query(&format!("SET temp_tablespaces = '{tablespace}'")).await?;
        Ok(())
    }
}

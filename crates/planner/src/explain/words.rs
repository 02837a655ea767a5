//! What the operators that are not the engine's are called in a plan.

use super::plain_text;

/// An operator's line in plain words: its `name`, and what `line` says of it.
pub fn label(name: &str, line: &str) -> String {
    let details = line.strip_prefix(name).unwrap_or(line);
    let details = details.strip_prefix(':').unwrap_or(details).trim();
    match details.is_empty() {
        true => word(name),
        false => format!("{}: {}", word(name), plain_text(details)),
    }
}

fn word(name: &str) -> String {
    match name {
        "DataSourceExec" | "LazyMemoryExec" => "Rows".to_owned(),
        "PlaceholderRowExec" => "One Row".to_owned(),
        "EmptyExec" => "No Rows".to_owned(),
        "ProjectionExec" => "Project".to_owned(),
        "AsyncFuncExec" => "Functions".to_owned(),
        "CoalescePartitionsExec" => "Gather".to_owned(),
        "SortPreservingMergeExec" => "Gather Sorted".to_owned(),
        "RepartitionExec" => "Repartition".to_owned(),
        "GlobalLimitExec" | "LocalLimitExec" => "Limit".to_owned(),
        "UnionExec" | "InterleaveExec" => "Append".to_owned(),
        "WindowAggExec" | "BoundedWindowAggExec" => "Window".to_owned(),
        "RecursiveQueryExec" => "Recursive Union".to_owned(),
        "SymmetricHashJoinExec" => "Hash Join".to_owned(),
        "TidepoolScanExec" => "Scan".to_owned(),
        "HeapPacingExec" | "MeasureExec" => "Pacing".to_owned(),
        // `HashJoinExec` is a hash join.
        other => {
            let mut words = String::with_capacity(other.len() + 4);
            for c in other.trim_end_matches("Exec").chars() {
                if c.is_ascii_uppercase() && !words.is_empty() {
                    words.push(' ');
                }
                words.push(c);
            }
            words
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_go_by_plain_words() {
        assert_eq!(label("ProjectionExec", "ProjectionExec: expr=[Int64(1) as x]"), "Project: expr=[1 as x]");
        assert_eq!(label("EngineExec", "EngineExec"), "Engine");
        assert_eq!(
            label("NestedLoopJoinExec", "NestedLoopJoinExec: join_type=Left"),
            "Nested Loop Join: join_type=Left"
        );
    }
}

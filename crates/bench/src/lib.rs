//! Benchmarks: TPC-H, TPC-DS and the placements of the papers, with their reports.

//! What a misspelt name may have meant.

/// Of some names the one that is fewest edits away: one edit, and another for every four characters. `None` where none is that near.
pub fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let folded = name.to_lowercase();
    let edits_max = 1 + folded.chars().count() / 4;
    let edits = |other: &&'n str| strsim::osa_distance(&folded, &other.to_lowercase());
    let near = names.into_iter().map(|other| (edits(&other), other));
    let near = near.filter(|(edits, other)| *edits <= edits_max && *edits < other.chars().count());
    near.min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_others_are_not() {
        let names = ["trips", "trucks", "date_trunc", "far"];
        assert_eq!(nearest("trip", names), Some("trips"));
        assert_eq!(nearest("Tirps", names), Some("trips"), "two letters that changed places");
        assert_eq!(nearest("datetrunc", names), Some("date_trunc"));
        assert_eq!(nearest("fra", names), Some("far"));
        assert_eq!(nearest("customers", names), None);
        assert_eq!(nearest("x", ["y", "z"]), None, "a name of one letter is like any other");
    }
}

//! The name that was probably meant.

/// The name with the fewest changes of a letter from `name`, the first of several: at most two, or a third of its letters,
/// and fewer than it has.
///
/// ```
/// use plimsoll_train::nearest;
/// assert_eq!(nearest("kernal", ["bias", "kernel"].into_iter()), Some("kernel"));
/// assert_eq!(nearest("embedding", ["bias", "kernel"].into_iter()), None);
/// ```
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = name.chars().count();
    let most = (letters / 3).max(2).min(letters.saturating_sub(1));
    let near = names.map(|other| (distance(name, other), other)).filter(|(changes, _)| *changes <= most);
    near.min_by_key(|(changes, _)| *changes).map(|(_, other)| other)
}

/// Letters to put in, take out or replace to turn `a` into `b` (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    // Row i holds the distances of the first i letters of `a` from every beginning of `b`.
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_changes() {
        for (a, b, changes) in [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("kernel", "kernal", 1),
            ("bias", "bais", 2),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (changes, changes), "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_is_the_one_with_fewest_changes() {
        let names = ["dense1/kernel", "dense1/bias", "dense2/kernel", "norm/gain"];
        assert_eq!(nearest("dense1.bias", names.into_iter()), Some("dense1/bias"));
        assert_eq!(nearest("dense2/kernal", names.into_iter()), Some("dense2/kernel"));
        assert_eq!(nearest("x", std::iter::empty()), None);
        // What shares hardly a letter was not meant.
        assert_eq!(nearest("x", ["lr"].into_iter()), None);
        assert_eq!(nearest("attention", names.into_iter()), None);
        assert_eq!(nearest("norm", names.into_iter()), None);
    }
}

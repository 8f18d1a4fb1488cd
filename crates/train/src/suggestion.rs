//! The name that was probably meant.

/// The name at the smallest edit distance from `name`, the first of several. Names farther away than two letters or a third
/// of `name`, or as far as all of it, are not suggested.
pub fn suggestion<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = name.chars().count();
    let limit = (letters / 3).max(2).min(letters.saturating_sub(1));
    let near = names.map(|other| (strsim::levenshtein(name, other), other));
    near.filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_with_fewest_changes() {
        let names = ["dense1/kernel", "dense1/bias", "dense2/kernel", "norm/gain"];
        assert_eq!(suggestion("dense1.bias", names.into_iter()), Some("dense1/bias"));
        assert_eq!(suggestion("dense2/kernal", names.into_iter()), Some("dense2/kernel"));
        assert_eq!(suggestion("kernal", ["bias", "kernel"].into_iter()), Some("kernel"));
        assert_eq!(suggestion("embedding", ["bias", "kernel"].into_iter()), None);
        assert_eq!(suggestion("x", std::iter::empty()), None);
        // Names that share hardly a letter were not meant.
        assert_eq!(suggestion("x", ["lr"].into_iter()), None);
        assert_eq!(suggestion("attention", names.into_iter()), None);
        assert_eq!(suggestion("norm", names.into_iter()), None);
    }
}

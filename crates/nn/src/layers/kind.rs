//! The kind of a layer, from its type's name.

/// The last segment of a type's path in snake case, without generics: `my::Residual<my::Dense>` is `residual`.
pub(super) fn of_type<T: ?Sized>() -> String {
    let path = std::any::type_name::<T>();
    let path = path.split('<').next().unwrap_or(path);
    let name = snake_case(path.rsplit("::").next().unwrap_or(path));
    // A closure has no name.
    if name.starts_with(char::is_alphabetic) { name } else { "layer".to_string() }
}

/// `MaxPool2d` is `max_pool2d`, `GELULayer` is `gelu_layer`.
pub(super) fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::with_capacity(name.len() + 4);
    for (i, &letter) in letters.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| letters[i]);
        let after = letters.get(i + 1);
        let starts_word = before.is_some_and(|before| {
            before.is_lowercase() || (before != '_' && after.is_some_and(|after| after.is_lowercase()))
        });
        if letter.is_uppercase() && starts_word {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_become_snake_case() {
        for (name, snake) in [
            ("Conv2d", "conv2d"),
            ("Conv2D", "conv2d"),
            ("MaxPool2d", "max_pool2d"),
            ("RmsNorm", "rms_norm"),
            ("GELULayer", "gelu_layer"),
            ("Relu6", "relu6"),
            ("Two_Words", "two_words"),
            ("A", "a"),
            ("", ""),
        ] {
            assert_eq!(snake_case(name), snake);
        }
    }

    #[test]
    fn paths_and_generics_are_cut() {
        struct Gate<T>(T);
        assert_eq!(of_type::<Gate<Vec<Option<u8>>>>(), "gate");
        assert_eq!(of_type::<Gate<Gate<u8>>>(), "gate");
        fn closure<T>(_: T) -> String {
            of_type::<T>()
        }
        assert_eq!(closure(|| Gate(0u8).0), "layer");
    }
}

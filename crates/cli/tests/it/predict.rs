//! Predictions of files that people have: pictures, folders, tables, prompts, through the real binary.

use crate::support;

use png::ColorType;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;
use support::{Scratch, json, number, plimsoll};

/// Writes a PNG file.
fn picture(path: &Path, [height, width]: [usize; 2], colour: ColorType, pixels: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), width as u32, height as u32);
    encoder.set_color(colour);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

/// A colour picture of one brightness.
fn plain(path: &Path, size: [usize; 2], colour: [u8; 3]) {
    let pixels: Vec<u8> = (0..size[0] * size[1]).flat_map(|_| colour).collect();
    picture(path, size, ColorType::Rgb, &pixels);
}

const COLOURS: [(&str, [u8; 3]); 3] =
    [("blue", [20, 30, 220]), ("green", [10, 200, 20]), ("red", [230, 20, 10])];

/// A model that tells colours apart, trained on `count` pictures of each.
fn trained_on_colours(scratch: &Scratch, count: usize) -> (String, Output) {
    for (name, colour) in COLOURS {
        for i in 0..count {
            let shade = colour.map(|c| c.saturating_add(i as u8));
            plain(&scratch.0.join(format!("colours/{name}/{i}.png")), [16, 16], shade);
        }
    }
    let (run, data) = (scratch.path("run"), format!("images:{}", scratch.path("colours")));
    let flags = ["--model=lenet", "--image-size=16", "--channels=3", "--batch=8", "--lr=0.005"];
    let output = plimsoll(&[&["train", "--epochs=30", "--data", &data, "--out", &run], &flags[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (run, output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that a command is refused with status 2 and a message with these words, and prints nothing raw.
#[track_caller]
fn refused(arguments: &[&str], words: &[&str]) {
    let output = plimsoll(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
    assert!(!message.contains('\x1b') && !message.contains("panicked"), "{message:?}");
}

#[test]
fn pictures_get_the_names_of_classes_and_what_is_changed_is_told() {
    let scratch = Scratch::new("predict-pictures");
    // Fewer than ten pictures of a class: the last of each is for testing.
    let (run, output) = trained_on_colours(&scratch, 6);
    assert!(
        text(&output.stderr).contains("3 classes have fewer than 10 pictures"),
        "{}",
        text(&output.stderr)
    );
    let saved: Value =
        serde_json::from_str(&fs::read_to_string(scratch.0.join("run/data.json")).unwrap()).unwrap();
    assert_eq!(saved["classes"], serde_json::json!(["blue", "green", "red"]));

    let mine = scratch.0.join("mine");
    plain(&mine.join("a.png"), [16, 16], COLOURS[2].1);
    plain(&mine.join("b.png"), [40, 30], COLOURS[0].1);
    picture(&mine.join("c\x1b[31m.png"), [16, 16], ColorType::Grayscale, &[120; 256]);
    fs::write(mine.join("notes.txt"), "not a picture").unwrap();
    let folder = scratch.path("mine");
    let output = plimsoll(&["predict", &run, &folder]);
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[0].contains("a.png") && lines[0].contains("red") && lines[0].contains('%'), "{out}");
    assert!(lines[1].contains("b.png") && lines[1].contains("blue"), "{out}");
    assert!(lines[2].contains(r"c\x1b[31m.png") && !out.contains('\x1b'), "{out:?}");
    assert!(
        errors.contains("1 of 3 pictures is resized to 16×16, as in training") && errors.contains("40×30"),
        "{errors}"
    );
    assert!(errors.contains("1 of 3 pictures is turned from grey to colours"), "{errors}");

    // Files in any order, the two likeliest, as objects and as a table.
    let (a, b) = (scratch.path("mine/a.png"), scratch.path("mine/b.png"));
    let object = json(&plimsoll(&["predict", &run, &b, &a, "--top=2", "--json"]));
    let rows = object["predictions"].as_array().unwrap();
    assert_eq!((number(&object, "rows"), rows.len()), (2.0, 2));
    assert_eq!((&rows[0]["file"], &rows[0]["class"]), (&b.clone().into(), &"blue".into()));
    assert_eq!((&rows[1]["file"], &rows[1]["top"][0]["class"]), (&a.clone().into(), &"red".into()));
    let [first, second] = [0, 1].map(|i| number(&rows[1]["top"][i], "probability"));
    assert!(first > 0.9 && second < first && first + second <= 1.0 + 1e-9, "{rows:?}");
    let (planned, measured) = (number(&object, "planned_peak_bytes"), number(&object, "measured_peak_bytes"));
    assert!((measured - planned).abs() <= 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    let table = scratch.path("rows.csv");
    assert!(plimsoll(&["predict", &run, &a, &b, "--out", &table]).status.success());
    let table = fs::read_to_string(table).unwrap();
    assert_eq!(table.lines().next(), Some("file,class,probability,output0,output1,output2"));
    assert!(table.lines().nth(1).unwrap().starts_with(&format!("{a},red,")), "{table}");
    let objects = scratch.path("rows.json");
    assert!(plimsoll(&["predict", &run, &a, &b, "--out", &objects]).status.success());
    let objects: Value = serde_json::from_str(&fs::read_to_string(objects).unwrap()).unwrap();
    assert_eq!(objects[1]["class"], "blue");

    // Evaluation has the names, too.
    let found = json(&plimsoll(&["evaluate", &run, "--metrics=accuracy,confusion", "--json"]));
    assert_eq!(number(&found["metrics"], "confusion/red/red"), 1.0);

    // Labels that would be numbered otherwise are no labels of this model.
    let other = format!("images:{}", scratch.path("other"));
    for i in 0..4 {
        plain(&scratch.0.join(format!("other/green/{i}.png")), [16, 16], COLOURS[1].1);
    }
    refused(&["evaluate", &run, "--data", &other], &["the classes green", "blue, green, red"]);
    for name in ["blue", "red"] {
        fs::create_dir(scratch.0.join("other").join(name)).unwrap();
    }
    let found = json(&plimsoll(&["evaluate", &run, "--data", &other, "--json"]));
    assert_eq!(number(&found["metrics"], "accuracy"), 1.0);

    let notes = scratch.path("mine/notes.txt");
    refused(&["predict", &run, &notes], &["notes.txt", "neither a JPEG nor a PNG"]);
    refused(&["predict", &run, "no-such.png"], &["no-such.png", "cannot be read"]);
    fs::create_dir(scratch.0.join("empty")).unwrap();
    refused(&["predict", &run, &scratch.path("empty")], &["empty", "no .jpg or .png files"]);
    refused(&["predict", &run, &a, "--data=mnist"], &["--data"]);
    refused(&["predict", &run, &a, "--label=x"], &["--label", "leave it out"]);
    refused(&["predict", &run, &a, "--top=0"], &["--top"]);
    refused(&["predict", &run, &a, "--tokens=3"], &["--tokens", "cannot be used with"]);
    refused(&["predict", &run, "--tokens=3"], &["--prompt"]);
    refused(&["predict", &run, "--prompt=x"], &["--prompt is for models that continue text"]);
    refused(&["predict", &scratch.path("nothing"), &a], &["nothing", "train --out"]);
    // Damaged files.
    fs::write(scratch.0.join("mine/cut\x1b.png"), &fs::read(&a).unwrap()[..40]).unwrap();
    refused(&["predict", &run, &folder], &[r"cut\x1b.png"]);
    fs::write(scratch.0.join("run/data.json"), "{").unwrap();
    refused(&["predict", &run, &a], &["data.json"]);
}

#[test]
fn digits_that_are_saved_as_pictures_are_recognised_without_labels() {
    let scratch = Scratch::new("predict-digits");
    let run = scratch.path("run");
    json(&plimsoll(&["train", "--json", "--steps=150", "--out", &run]));
    let digits = plimsoll::data::open("mnist", &plimsoll::data::OpenOptions::default()).unwrap();
    let batch = digits.test.batch(20);
    let mut batches = batch.start(plimsoll::data::Cursor::default()).unwrap();
    let batch = batches.next().unwrap().unwrap();
    let (images, labels) = (batch.input_tensors().remove(0), batch.label_tensor());
    let pixel = |value: &f32| ((value * 0.3081 + 0.1307) * 255.0).round() as u8;
    let mut files = Vec::new();
    for (i, image) in images.as_f32().unwrap().chunks(784).enumerate() {
        let path = scratch.0.join(format!("{i:02}.png"));
        picture(&path, [28, 28], ColorType::Grayscale, &image.iter().map(pixel).collect::<Vec<u8>>());
        files.push(path.to_str().unwrap().to_string());
    }
    let arguments: Vec<&str> =
        ["predict", &run, "--json"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let output = plimsoll(&arguments);
    let said = json(&output);
    // Nothing is changed, so nothing is told.
    assert!(!text(&output.stderr).contains("as in training"), "{}", text(&output.stderr));
    // The same scores as from the data set.
    let own = text(&plimsoll(&["predict", &run]).stdout);
    let mut right = 0;
    for (i, (row, line)) in
        said["predictions"].as_array().unwrap().iter().zip(own.lines().skip(1)).enumerate()
    {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(row["class"], fields[1], "digit {i}");
        assert!((number(row, "probability") - fields[2].parse::<f64>().unwrap()).abs() < 1e-4, "digit {i}");
        let label = labels.as_i32().unwrap()[i].to_string();
        right += usize::from(row["class"].as_str() == Some(&*label));
    }
    assert!(right >= 17, "{right} of 20");
    // A colour picture of another size becomes a grey one of 28×28 pixels.
    let other = scratch.0.join("other.png");
    plain(&other, [32, 32], [9, 9, 9]);
    let errors = text(&plimsoll(&["predict", &run, other.to_str().unwrap()]).stderr);
    assert!(errors.contains("is resized to 28×28") && errors.contains("from colours to grey"), "{errors}");
    assert!(errors.contains("32×32 colour pixels"), "{errors}");
    // Damaged weights are wrong input.
    let weights = scratch.0.join("run/weights.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    refused(&["predict", &run, &files[0]], &["weights.safetensors"]);
    refused(&["evaluate", &run], &["weights.safetensors"]);
}

/// Rows whose kind depends on size and colour.
fn animals(count: usize, labelled: bool) -> String {
    let row = |i: usize| {
        let (size, colour) = (i % 10, ["red", "blue"][i / 10 % 2]);
        let kind = if size + 5 * usize::from(colour == "red") > 7 { "horse" } else { "mouse" };
        match labelled {
            true => format!("{},{colour},{kind}\n", 1000 + 100 * size),
            false => format!("{colour},x{i},{}\n", 1000 + 100 * size),
        }
    };
    (0..count).map(row).collect()
}

#[test]
fn rows_of_another_table_go_through_what_training_did() {
    let scratch = Scratch::new("predict-rows");
    let table = scratch.path("animals.csv");
    fs::write(&table, format!("size,colour,kind\n{}", animals(200, true))).unwrap();
    let (run, data) = (scratch.path("run"), format!("csv:{table}"));
    let flags = ["--model=mlp", "--width=16", "--batch=20", "--epochs=60", "--lr=0.01"];
    let output = plimsoll(&[&["train", "--data", &data, "--out", &run], &flags[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    // No label, another order, a column more, and so few rows that their own mean would mislead.
    let new = scratch.path("new.csv");
    fs::write(&new, "colour,name,size\nred,a,1900\nblue,b,1900\nblue,c,1000\n").unwrap();
    let out = text(&plimsoll(&["predict", &run, &new]).stdout);
    let classes: Vec<&str> = out.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(classes, ["horse", "horse", "mouse"], "{out}");
    // All rows, not a part of them.
    fs::write(&new, format!("colour,name,size\n{}", animals(57, false))).unwrap();
    let said = json(&plimsoll(&["predict", &run, &new, "--json"]));
    let rows = said["predictions"].as_array().unwrap();
    let expected: Vec<String> =
        animals(57, true).lines().map(|line| line.split(',').nth(2).unwrap().into()).collect();
    let right = rows.iter().zip(&expected).filter(|(row, kind)| row["class"] == **kind).count();
    assert!(rows.len() == 57 && right >= 54, "{right} of {}", rows.len());
    fs::write(&new, "colour,size\ngreen,1200\n").unwrap();
    refused(&["predict", &run, &new], &["line 2", "colour", "`green`", "blue, red"]);
    fs::write(&new, "colour\nred\n").unwrap();
    refused(&["predict", &run, &new], &["`size`", "trained"]);
    refused(&["predict", &run, &new, &new], &["one at a time"]);
    refused(&["predict", &run, &scratch.path("run")], &["rows of a table", ".csv"]);
}

#[test]
fn text_is_generated_from_a_prompt_and_follows_the_seed() {
    let scratch = Scratch::new("predict-text");
    let file = scratch.path("text.txt");
    // Windows of twelve letters start at each of the seven.
    fs::write(&file, "abcdefg".repeat(700)).unwrap();
    let data = format!("text:{file}");
    for (model, more) in [("gpt", &["--heads=2"][..]), ("lstm", &[])] {
        let run = scratch.path(model);
        let sizes = ["--context=12", "--width=32", "--layers=1", "--batch=16", "--steps=400", "--lr=0.02"];
        let output = plimsoll(
            &[&["train", "--model", model, "--data", &data, "--out", &run], &sizes[..], more].concat(),
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        let generate = |flags: &[&str]| {
            let output = plimsoll(&[&["predict", &run, "--prompt=defga"], flags].concat());
            assert!(output.status.success(), "{}", text(&output.stderr));
            text(&output.stdout)
        };
        // Greedy, past the end of the context.
        let greedy = generate(&["--tokens=40", "--temperature=0"]);
        assert!(
            greedy.starts_with("defga") && greedy.ends_with('\n') && greedy.len() == 46,
            "{model}: {greedy}"
        );
        let last = &greedy[15..45];
        assert!("abcdefg".repeat(6).contains(last), "{model}: {greedy}");
        let free = |seed: &str| generate(&["--tokens=30", "--temperature=9", "--seed", seed]);
        assert_eq!(free("3"), free("3"), "{model}");
        assert!(free("3") != free("4"), "{model}");
        let object =
            json(&plimsoll(&["predict", &run, "--prompt=abc", "--tokens=5", "--temperature=0", "--json"]));
        assert_eq!((object["text"].as_str().unwrap().len(), number(&object, "tokens")), (8, 5.0), "{object}");
        let (planned, measured) =
            (number(&object, "planned_peak_bytes"), number(&object, "measured_peak_bytes"));
        assert!(
            (measured - planned).abs() <= 4.0 * 1024.0 * 1024.0,
            "planned {planned}, measured {measured}"
        );
        refused(&["predict", &run, "--prompt="], &["--prompt is empty"]);
        refused(&["predict", &run, "--prompt=a", "--temperature=-1"], &["--temperature"]);
        refused(&["predict", &run, "--prompt=a", "--tokens=0"], &["--tokens"]);
        refused(&["predict", &run, &file], &["--prompt"]);
        let short = plimsoll(&["predict", &run, "--prompt=a", "--memory=5MiB"]);
        assert_eq!(short.status.code(), Some(3), "{}", text(&short.stderr));
    }
}

#[cfg(feature = "tokenizers")]
#[test]
fn a_prompt_is_read_with_the_tokenizer_of_the_run() {
    let scratch = Scratch::new("predict-tokens");
    let fixture = |name: &str| format!("{}/../data/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let (run, data) = (scratch.path("run"), format!("text:{}", fixture("text.txt")));
    let tokenizer = fixture("tokenizer.json");
    let sizes = ["--context=8", "--width=16", "--layers=1", "--heads=2", "--batch=4", "--steps=4"];
    let train = ["train", "--model=gpt", "--data", &data, "--tokenizer", &tokenizer, "--out", &run];
    let output = plimsoll(&[&train[..], &sizes].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let prompt = &fs::read_to_string(fixture("text.txt")).unwrap()[..12];
    let generate = |seed: &str| {
        let flags = ["--tokens=20", "--temperature=1", "--json", "--seed", seed, "--prompt", prompt];
        json(&plimsoll(&[&["predict", &run], &flags[..]].concat()))["text"].as_str().unwrap().to_string()
    };
    let (one, other) = (generate("1"), generate("2"));
    assert!(one.starts_with(prompt) && one.len() > prompt.len() && one == generate("1"), "{one}");
    assert!(one != other, "{other}");
    fs::remove_file(scratch.0.join("run/data.json")).unwrap();
    assert_eq!(generate("1"), one, "a run of a version without data.json");
}

#[test]
fn masks_have_the_size_of_their_pictures() {
    let scratch = Scratch::new("predict-masks");
    // The left part of a picture is dark and class 0, the right is bright and class 1.
    let halves = |size: [usize; 2], edge: usize| -> [Vec<u8>; 2] {
        let columns = || (0..size[0]).flat_map(|_| 0..size[1]);
        let pixels = columns().flat_map(|x| [if x < edge { 20 } else { 230 }; 3]).collect();
        [pixels, columns().map(|x| u8::from(x >= edge)).collect()]
    };
    for i in 0..12 {
        let [pixels, mask] = halves([16, 16], 3 + i % 10);
        picture(&scratch.0.join(format!("cells/images/{i:02}.png")), [16, 16], ColorType::Rgb, &pixels);
        picture(&scratch.0.join(format!("cells/masks/{i:02}.png")), [16, 16], ColorType::Grayscale, &mask);
    }
    let (run, data) = (scratch.path("run"), format!("masks:{}", scratch.path("cells")));
    let flags =
        ["--model=unet_plain", "--image-size=16", "--width=4", "--batch=4", "--epochs=40", "--lr=0.01"];
    let output = plimsoll(&[&["train", "--data", &data, "--out", &run], &flags[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    // One of training's size, and one that takes several windows.
    let mine = scratch.0.join("mine");
    picture(&mine.join("same.png"), [16, 16], ColorType::Rgb, &halves([16, 16], 6)[0]);
    picture(&mine.join("wide.png"), [24, 60], ColorType::Rgb, &halves([24, 60], 40)[0]);
    let (folder, out) = (scratch.path("mine"), scratch.path("out"));
    let output = plimsoll(&["predict", &run, &folder, "--out", &out, "--json"]);
    let said = json(&output);
    assert_eq!(number(&said, "pictures"), 2.0);
    let (planned, measured) = (number(&said, "planned_peak_bytes"), number(&said, "measured_peak_bytes"));
    assert!((measured - planned).abs() <= 4.0 * 1024.0 * 1024.0, "planned {planned}, measured {measured}");
    for (name, size, edge) in [("same", [16, 16], 6), ("wide", [24, 60], 40)] {
        let file =
            std::io::BufReader::new(fs::File::open(scratch.0.join(format!("out/{name}.png"))).unwrap());
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::IDENTITY);
        let mut reader = decoder.read_info().unwrap();
        assert_eq!(reader.info().color_type, ColorType::Indexed);
        assert_eq!(&reader.info().palette.as_ref().unwrap()[..6], [0, 0, 0, 128, 0, 0]);
        assert_eq!([reader.info().height as usize, reader.info().width as usize], size, "{name}");
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        let right = pixels.iter().zip(&halves(size, edge)[1]).filter(|(a, b)| a == b).count();
        assert!(right as f64 >= 0.9 * pixels.len() as f64, "{name}: {right} of {}", pixels.len());
    }
    // Without a folder the shares of the classes are told.
    let lines = text(&plimsoll(&["predict", &run, &folder]).stdout);
    assert!(lines.contains("wide.png") && lines.contains('%') && lines.lines().count() == 2, "{lines}");
    refused(&["predict", &run, &folder, "--out", &folder], &["would replace them"]);
    refused(&["predict", &run, &folder, "--out", &scratch.path("scores.csv")], &["name a folder"]);
}

#[test]
fn an_unfinished_run_predicts_files() {
    let scratch = Scratch::new("predict-unfinished");
    let (run, _) = trained_on_colours(&scratch, 12);
    fs::remove_file(scratch.0.join("run/report.json")).unwrap();
    fs::remove_file(scratch.0.join("run/weights.safetensors")).unwrap();
    let mine = scratch.path("colours/green/3.png");
    let output = plimsoll(&["predict", &run, &mine]);
    assert!(text(&output.stdout).contains("green"), "{} {}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stderr).contains("the run is not finished"));
}

#[test]
fn lines_of_predictions_are_aligned() {
    let scratch = Scratch::new("aligned");
    for (class, count) in [("a", 12), ("a-class-with-a-name-of-many-letters", 12)] {
        for i in 0..count {
            plain(&scratch.0.join(format!("few/{class}/{i:02}.png")), [16, 16], [9 * i as u8; 3]);
        }
    }
    let (run, data) = (scratch.path("run"), format!("images:{}", scratch.path("few")));
    // Files of pictures have a model of their own where no flag names one.
    let report =
        json(&plimsoll(&["train", "--json", "--steps=1", "--batch=4", "--data", &data, "--out", &run]));
    assert_eq!(report["model"], "resnet20");
    let short = scratch.path("few/a/00.png");
    let long = scratch.path(&format!("{}.png", "é".repeat(40)));
    fs::copy(&short, &long).unwrap();
    let output = plimsoll(&["predict", &run, &short, &long, "--top=2"]);
    let said = text(&output.stdout);
    let places = |line: &str| -> Vec<usize> {
        line.chars().enumerate().filter(|(_, letter)| *letter == '%').map(|(place, _)| place).collect()
    };
    let lines: Vec<Vec<usize>> = said.lines().map(places).collect();
    assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].len() == 2, "{said}");
}

#[test]
fn a_class_with_one_picture_is_for_training() {
    let scratch = Scratch::new("few-pictures");
    let data = format!("images:{}", scratch.path("few"));
    for (name, count) in [("one", 1), ("three", 3), ("twelve", 12)] {
        for i in 0..count {
            plain(&scratch.0.join(format!("few/{name}/{i:02}.png")), [16, 16], [9, 9, 9]);
        }
    }
    let report = json(&plimsoll(&["data", &data, "--image-size=16", "--seconds=0.05", "--json"]));
    assert_eq!((number(&report, "train_examples"), number(&report, "test_examples")), (14.0, 2.0));
    let train =
        ["train", "--model=lenet", "--image-size=16", "--channels=3", "--classes=3", "--steps=2", "--data"];
    let output = plimsoll(&[&train[..], &[&data]].concat());
    let errors = text(&output.stderr);
    assert!(output.status.success() && errors.contains("1 class has fewer than 10 pictures"), "{errors}");
    assert!(errors.contains("1 class has one picture, which is for training"), "{errors}");
    for name in ["three", "twelve"] {
        fs::remove_dir_all(scratch.0.join("few").join(name)).unwrap();
    }
    refused(&[&train[..], &[&data]].concat(), &["every class has one picture"]);
}

/// A TIFF file of grey values in one strip, compressed by deflate without shrinking.
#[cfg(feature = "tiff")]
fn tiff(path: &Path, [height, width]: [usize; 2], pixels: &[u8]) {
    let (mut a, mut b) = (1u32, 0u32);
    pixels
        .iter()
        .for_each(|&byte| (a, b) = ((a + u32::from(byte)) % 65521, (b + a + u32::from(byte)) % 65521));
    let length = pixels.len() as u16;
    let strip = [
        &[0x78, 1, 1][..],
        &length.to_le_bytes(),
        &(!length).to_le_bytes(),
        pixels,
        &(b << 16 | a).to_be_bytes(),
    ]
    .concat();
    assert!(strip.len() > pixels.len());
    let entries: [(u16, usize); 8] = [
        (256, width),
        (257, height),
        (258, 8),
        (259, 8),
        (262, 1),
        (273, 8 + 2 + 8 * 12 + 4),
        (278, height),
        (279, strip.len()),
    ];
    let entry = |(tag, value): (u16, usize)| {
        [&tag.to_le_bytes()[..], &4u16.to_le_bytes(), &1u32.to_le_bytes(), &(value as u32).to_le_bytes()]
            .concat()
    };
    let list: Vec<u8> = entries.into_iter().flat_map(entry).collect();
    fs::write(path, [&b"II\x2a\0\x08\0\0\0\x08\0"[..], &list, &[0; 4], &strip].concat()).unwrap();
}

#[cfg(feature = "tiff")]
#[test]
fn strips_that_do_not_shrink_are_read() {
    let scratch = Scratch::new("noise-tiff");
    let noise: Vec<u8> = (0..24u32 * 24).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    tiff(&scratch.0.join("noise.tif"), [24, 24], &noise);
    tiff(&scratch.0.join("classes.tif"), [24, 24], &noise.iter().map(|n| n % 3).collect::<Vec<u8>>());
    let (spec, label) = (format!("raster:{}", scratch.path("noise.tif")), scratch.path("classes.tif"));
    let look = ["data", &spec, "--label", &label, "--image-size=6", "--seconds=0.05", "--json"];
    assert_eq!(number(&json(&plimsoll(&look)), "classes"), 3.0);
}

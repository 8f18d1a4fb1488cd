fn main() {
    let name = std::env::args().nth(1).unwrap();
    let e = plimsoll_nn::zoo::ZOO.iter().find(|e| e.name == name).unwrap();
    let m = (e.make)(&Default::default());
    let g = plimsoll_nn::step::training(m.as_ref(), &plimsoll_nn::AdamW::new(1e-3), 16).unwrap();
    let o = plimsoll_transform::optimize(&g, &[]).unwrap();
    println!("{} -> {}", g.nodes.len(), o.nodes.len());
    println!("{o}");
}

//! The bits of a run are those of its arithmetic, not of its instruction set or architecture.

use plimsoll_conformance::{synthetic, trained_states, widening_sets};
use plimsoll_nn::{AdamW, Policy, Precision, zoo};
use plimsoll_train::Trainer;

/// Models, and FNV-1a of their states after three steps: where a product and a sum are two roundings, as in plain code, and
/// where they are one. The same on x86 and ARM. They change with the arithmetic of kernels, on purpose only, and with the
/// random numbers of data and states.
const STATES: [(&str, Precision, [u64; 2]); 7] = [
    ("mlp", Precision::F32, [0x8fdf_d110_c8ee_8bb8, 0x21cb_1b96_efbd_e3aa]),
    ("lenet", Precision::F32, [0xabec_ccad_9cb6_73df, 0x6f92_d59c_21f7_1861]),
    ("mobilenet_v2", Precision::F32, [0x4c74_1c20_710b_4eb7, 0xf2be_849f_41de_d719]),
    ("gpt", Precision::F32, [0x6745_260a_2d55_3a20, 0xd4fa_28c6_7194_9f09]),
    ("gpt", Precision::BF16, [0xdbb5_2645_8ae0_e194, 0xd812_6800_f82d_d033]),
    ("gpt", Precision::F16, [0x23bf_34d3_5338_e97b, 0x897d_5728_cf8d_dabe]),
    ("lstm", Precision::F32, [0xbe35_9fdd_bcda_86fc, 0x2c12_caf9_a398_4b02]),
];

#[test]
fn sets_that_fuse_products_and_sums_have_the_same_bits_on_every_architecture() {
    for (executor, (name, precision, [plain, fused])) in
        widening_sets().flat_map(|executor| STATES.map(|case| (executor, case)))
    {
        let entry = zoo::ZOO.iter().find(|entry| entry.name == name).unwrap();
        let model = (entry.make)(&entry.small);
        let data = synthetic(&model, 10, 3, 5);
        let trainer = Trainer::new(model, AdamW::new(1e-2)).executor(executor.on(2)).line(usize::MAX);
        let trainer = trainer.precision(Policy::new(precision)).batch(4).steps(3).seed(9);
        let states = trained_states(&trainer, &data).unwrap();
        let bytes = states.iter().flat_map(|(_, bytes)| bytes);
        let found = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let expected = if executor.name == "cpu, portable" { plain } else { fused };
        assert_eq!(found, expected, "{name} in {precision} on {}: {found:#018x}", executor.name);
    }
}

"""Whatever JSON can say, drawn by hypothesis; with values that records hold among them."""

from hypothesis import strategies as st

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([1e308, -1, 0, 1, 2**53, "running", "arm-0", "0.5", [], {}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)

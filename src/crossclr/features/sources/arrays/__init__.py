"""Data as plain arrays: .npy, .npz, Parquet, or in memory."""

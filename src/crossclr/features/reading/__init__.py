"""How feature files are read: HDF5, folders of arrays, .npy and .npz, Parquet, shards."""

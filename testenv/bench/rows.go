package bench

// rows are what DESIGN calls fast and small, as far as it is measured. Where the peer runs in the same run it is a
// benchmark too; figures in theirs were measured on a machine of two cores.
func rows() []row {
	return []row{
		{
			name: "static stripped binary: longshore-agent", bench: "size of longshore-agent", unit: "MiB",
			target: "≤ 32 MiB", limit: 32,
		},
		{name: "static stripped binary: longshore", bench: "size of longshore", unit: "MiB"},
		{name: "static stripped binary: longshore-fleet", bench: "size of longshore-fleet", unit: "MiB"},
	}
}

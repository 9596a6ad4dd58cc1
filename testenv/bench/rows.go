package bench

// rows are what DESIGN calls fast and small, as far as it is measured. Where the peer runs in the same run it is a
// benchmark too; figures in theirs were published, or measured on another machine of two cores.
func rows() []row {
	const (
		driver = "agent/containerd."
		net    = "agent/network."
	)
	return []row{
		{
			name: "unchanged poll: requests", bench: "registry.BenchmarkUnchangedPoll", unit: "requests/op",
			target: "exactly 1, a HEAD", limit: 1, least: 1,
		},
		{name: "unchanged poll: time, registry on the same machine", bench: "registry.BenchmarkUnchangedPoll", unit: "ns/op"},
		{
			name: "one service, image present, to HTTP 200", bench: driver + "BenchmarkServiceToHTTP200", unit: "ours-ms",
			peerUnit: "floor-ms", theirs: "the Go client's floor; nerdctl run: 360 to 420 ms, measured elsewhere",
			target: "≤ 1.3 of the floor", ratio: 1.3,
		},
		{name: "a crashed service, to HTTP 200 again", bench: driver + "BenchmarkRestart", unit: "ns/op"},
		{
			name: "durable pull and unpack of 8 layers, 96 MiB", bench: driver + "BenchmarkPull/against_ctr_transfer", unit: "ours-ms",
			peerUnit: "ctr-ms", theirs: "ctr images pull, not durable", target: "≤ 1.05", ratio: 1.05,
		},
		{
			name: "the same", bench: driver + "BenchmarkPull/against_ctr_local", unit: "ours-ms",
			peerUnit: "ctr-ms", theirs: "ctr images pull --local, not durable", target: "≤ 1.05", ratio: 1.05,
		},
		{
			name: "network attach of one container", bench: net + "BenchmarkAttach", unit: "ns/op",
			theirs: "CNI plugins: 60 to 92 ms, measured elsewhere", target: "≤ 5 ms", limit: 5e6,
		},
		{name: "network detach of one container", bench: net + "BenchmarkDetach", unit: "ns/op"},
		{name: "look at a device of 20 containers", bench: driver + "BenchmarkObserve", unit: "ns/op"},
		{
			name: "status intake", bench: "fleet/status.BenchmarkIntake", unit: "reports/s",
			target: "≥ 5000 reports/s", least: 5000,
		},
		{
			name: "static stripped binary: longshore-agent", bench: "size of longshore-agent", unit: "MiB",
			target: "≤ 32 MiB", limit: 32,
		},
		{name: "static stripped binary: longshore", bench: "size of longshore", unit: "MiB"},
		{name: "static stripped binary: longshore-fleet", bench: "size of longshore-fleet", unit: "MiB"},
	}
}

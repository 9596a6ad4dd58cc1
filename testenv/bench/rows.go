package bench

import (
	"fmt"
	"time"
)

// rows are what is promised to be fast and small, as far as it is measured. A peer that runs in the same run is a benchmark
// too; figures in theirs come from elsewhere and say so.
func rows(span time.Duration) []row {
	all := append(requestRows(), trustRows()...)
	all = append(all, runtimeRows()...)
	all = append(all, idleRows(span)...)
	all = append(all, fleetRows()...)
	all = append(all, siteRows()...)
	return append(all, sizeRows()...)
}

func requestRows() []row {
	const (
		poll   = "registry.BenchmarkUnchangedPoll"
		client = "registry.BenchmarkUnchangedPollClient"
		day    = "testenv/bench.BenchmarkDay"
	)
	return append([]row{
		{name: "unchanged poll through the whole agent: requests", bench: day, unit: "requests/poll", target: "exactly 1, a HEAD", limit: 1, least: 1},
		{name: "unchanged poll: bytes on the wire, both ways, without TLS", bench: day, unit: "wire-B/poll", target: "< 1 KiB", limit: 1023},
		{name: "unchanged poll: the heap after a day of them (1440), 20 containers", bench: day, unit: "growth-KiB/day", target: "no growth (≤ 64 KiB, noise)", limit: 64},
		{name: "unchanged poll: the client's allocations", bench: client, unit: "allocs/op"},
		{name: "unchanged poll: the client's allocated bytes", bench: client, unit: "B/op"},
		{name: "unchanged poll: time, registry on the same machine", bench: poll, unit: "ns/op"},
		{name: "status intake on SQLite", bench: "fleet/status.BenchmarkIntake", unit: "reports/s", target: "≥ 10,000 reports/s", least: 10_000},
	}, changeRows()...)
}

// changeRows are what the agent asks a registry for when one deployment of a hundred differs, signature included.
func changeRows() []row {
	var all []row
	for _, r := range []struct {
		kind, name string
		most       float64
	}{{"distribution", "a registry without the referrers API", 6}, {"referrers", "a registry with it", 4}} {
		parameter, component := "testenv/bench.BenchmarkChange/"+r.kind+"/parameter", "testenv/bench.BenchmarkChange/"+r.kind+"/component"
		target := fmt.Sprintf("≤ %.0f", r.most)
		all = append(all,
			row{name: "a parameter of 1 of 100 deployments changes, at " + r.name + ": requests", bench: parameter, unit: "requests/change", target: target, limit: r.most},
			row{
				name: "the same: blobs", bench: parameter, unit: "blobs/change", theirs: "the deployment; the state's manifest carries the State Manifest",
				target: "only what changed", limit: 1,
			},
			row{name: "the same: bytes of all answers", bench: parameter, unit: "body-KiB/change"},
			row{
				name: "a new component of 1 of 100 deployments, at " + r.name + ": requests", bench: component, unit: "requests/change",
				theirs: "the component's manifest on top, which carries the archive", target: target, limit: r.most,
			},
			row{name: "the same: blobs", bench: component, unit: "blobs/change", target: "only what changed", limit: 1},
		)
	}
	return all
}

func trustRows() []row {
	const verify = "signing.BenchmarkVerify/"
	return []row{
		{name: "verify one artifact in process, a signature in a bundle", bench: verify + "bundle", unit: "ns/op", theirs: "sigstore-go: 0.29 ms, measured before, not in this run"},
		{name: "the same, cosign's older format", bench: verify + "legacy", unit: "ns/op"},
		{
			name: "tag to acceptance of a state of 50 signed components, one deployment of it new, the rest known", bench: "testenv/bench.BenchmarkChain", unit: "chain-ms",
			theirs: "4 requests to a registry on the same machine in it", target: "≤ 50 ms", limit: 50,
		},
	}
}

func runtimeRows() []row {
	const (
		driver = "agent/containerd."
		net    = "agent/network."
		two    = driver + "BenchmarkProjectOfTwo"
		pull   = driver + "BenchmarkPull/against_ctr_"
	)
	return []row{
		{
			name: "one service, image present, to HTTP 200", bench: driver + "BenchmarkServiceToHTTP200", unit: "ours-ms", peerUnit: "floor-ms",
			theirs: "the Go client's floor", target: "≤ 1.1 × the floor", ratio: 1.1,
		},
		{
			name: "the same, beside the floor with a system call filter", bench: driver + "BenchmarkServiceToHTTP200", unit: "ours-ms", peerUnit: "confined-ms",
			theirs: "the Go client's floor with containerd's own filter",
		},
		{
			name: "the same, beside nerdctl", bench: driver + "BenchmarkServiceToHTTP200", unit: "ours-ms", peerUnit: "nerdctl-ms",
			theirs: "nerdctl run", absent: "nerdctl run: 360 to 420 ms, published, not measured in this run",
		},
		{
			name:  "Compose project of two services with ports, images present, through the whole agent, from the sync command to HTTP 200 of both",
			bench: "project through the agent", unit: "ours-ms", peer: two, peerUnit: "podman-ms", theirs: "podman kube play",
			absent: "podman kube play: 337 ms, measured before, not in this run", target: "≥ 2.5 × faster", ratio: 1 / 2.5,
		},
		{
			name: "the same, beside nerdctl", bench: "project through the agent", unit: "ours-ms", peer: two, peerUnit: "nerdctl-ms",
			theirs: "nerdctl compose; docker compose: 754 ms, measured before, not in this run",
			absent: "nerdctl compose: 626 ms, docker compose: 754 ms, measured before, not in this run",
		},
		{
			name: "the same without the agent's loop, from its plan on", bench: two, unit: "ours-ms", peerUnit: "podman-ms",
			theirs: "podman kube play", absent: "podman kube play: 337 ms, measured before, not in this run",
		},
		{
			name: "the same, beside the floor", bench: two, unit: "ours-ms", peerUnit: "floor-ms",
			theirs: "the Go client's floor, one after the other, without ports",
		},
		{
			name:  "gap of a stop-first update through the whole agent, from the last answer of the old container to the first of the new one",
			bench: "gap of an update", unit: "ours-ms", peerUnit: "podman-ms", theirs: "podman kube play --replace",
			absent: "podman kube play --replace: not measured in this run", target: "≤ 60 ms and the service's own start, ≥ 5 × shorter", limit: 60, ratio: 1.0 / 5,
		},
		{name: "a crashed service, to HTTP 200 again", bench: driver + "BenchmarkRestart", unit: "ns/op"},
		{
			name: "durable pull and unpack of 8 layers, 96 MiB", bench: pull + "transfer", unit: "ours-ms",
			peerUnit: "ctr-ms", theirs: "ctr images pull, 4 unpacks, then sync -f", target: "≤ 1.0 ×", ratio: 1,
		},
		{
			name: "the same, beside ctr's older way", bench: pull + "local", unit: "ours-ms",
			peerUnit: "ctr-ms", theirs: "ctr images pull --local, then sync -f",
		},
		{
			name: "pull killed at half and started again: what leaves the registry", bench: driver + "BenchmarkPullKilled", unit: "ours-MiB",
			peerUnit: "image-MiB", theirs: "the image", target: "≤ 1.05 × the image", ratio: 1.05,
		},
		{
			name: "the same by ctr", bench: driver + "BenchmarkPullKilled", unit: "ctr-MiB", peerUnit: "image-MiB", theirs: "the image",
		},
		{
			name: "network attach of one container with a port, median", bench: net + "BenchmarkAttach", unit: "ns/median",
			peer: net + "BenchmarkAttachCNI", theirs: "CNI plugins bridge, host-local, portmap, firewall",
			absent: "CNI plugins: 60 to 92 ms, published, not measured in this run", target: "≤ 5 ms", limit: 5e6,
		},
		{name: "network detach of one container", bench: net + "BenchmarkDetach", unit: "ns/op", target: "≤ 10 ms", limit: 10e6},
		{name: "observe a device of 20 containers", bench: driver + "BenchmarkObserve", unit: "ns/op"},
		{
			name:  "update of an application of which one source file of 24 MiB changed, through the whole agent: what leaves the registry",
			bench: "project updated through the agent", unit: "update-MiB", peerUnit: "layer-MiB", theirs: "the layer", target: "≥ 20 × less", ratio: 1.0 / 20,
		},
		{name: "the same: most memory of the agent", bench: "project updated through the agent", unit: "agent-MiB", target: "≤ 64 MiB", limit: 64},
	}
}

func idleRows(span time.Duration) []row {
	what := fmt.Sprintf("idle agent, %d containers, a poll every %.0f s, over %.0f s: ", idleContainers, idlePoll.Seconds(), span.Seconds())
	return []row{
		{name: what + "PSS", bench: "idle agent", unit: "pss-MiB", target: "≤ 32 MiB", limit: 32},
		{name: "the same: anonymous memory of it", bench: "idle agent", unit: "anon-MiB", target: "≤ 10 MiB", limit: 10},
		{name: "the same: share of one core", bench: "idle agent", unit: "cpu-%", target: "≤ 0.1 %", limit: 0.1},
		{name: "the same: written to disk, extrapolated to an hour", bench: "idle agent", unit: "written-KiB/h", target: "< 1 KiB/h", limit: 1},
		{name: "the same agent after its restart: PSS", bench: "idle agent, restarted", unit: "pss-MiB", target: "≤ 32 MiB", limit: 32},
		{name: "the same agent after its restart: anonymous memory of it", bench: "idle agent, restarted", unit: "anon-MiB", target: "≤ 10 MiB", limit: 10},
		{
			name: fmt.Sprintf("%d containers, everything on the device (agent, containerd, shims), PSS", idleServices), bench: "few containers", unit: "pss-MiB",
			peer: "few containers of nerdctl", theirs: "nerdctl's, with containerd; k3s: 490 MB, published, not measured in this run",
			absent: "k3s: 490 MB, published, not measured in this run", target: "≤ 80 MiB", limit: 80,
		},
		{name: "the same: the agent's part of it", bench: "few containers", unit: "agent-MiB"},
		{name: "containerd and its shims beside the agent of 20 containers, PSS", bench: "idle agent", unit: "beside-MiB"},
	}
}

func fleetRows() []row {
	var all []row
	for _, r := range []struct {
		kind, name string
		most       float64
	}{{"distribution", "distribution v3", 19}, {"lax", "go-containerregistry's server, which has the referrers API", 14}} {
		bench := "testenv/scale.BenchmarkFleet/" + r.kind
		what := "a fleet of 2,000 devices in 40 groups, " + r.name + ": "
		rate := row{
			name: "the same: time of a request while signed states are published, killed at half and taken up", bench: bench, unit: "ours-ms/request",
			peerUnit: "raw-ms/request", theirs: "manifests put by a client that does nothing else",
		}
		if r.kind == "distribution" {
			rate.target, rate.ratio = "≤ 1.25 ×, 0.8 of the rate", 1.25
		}
		all = append(all,
			row{name: what + "check", bench: bench, unit: "check-ms", target: "< 2 s", limit: 2000},
			row{name: "the same: plan of one parameter of one group", bench: bench, unit: "plan-s"},
			rate,
			row{name: "the same: signed states published", bench: bench, unit: "states/s"},
			row{name: "the same: requests of a signed state, its plan included", bench: bench, unit: "requests/state", target: fmt.Sprintf("≤ %.0f", r.most), limit: r.most},
			row{name: "the same: most memory of the publishing program", bench: bench, unit: "publish-MiB", target: "< 300 MiB", limit: 300},
			row{name: "the same: most memory of the planning program", bench: bench, unit: "plan-MiB", target: "< 300 MiB", limit: 300},
		)
	}
	return append(all, stateRows()...)
}

// stateRows are the requests about one device's states, counted where no other work has a part in them.
func stateRows() []row {
	var all []row
	for _, r := range []struct {
		kind, name string
		most       float64
	}{{"distribution", "distribution v3", 19}, {"referrers", "a registry with the referrers API", 14}} {
		bench, target := "testenv/scale.BenchmarkState/"+r.kind, fmt.Sprintf("≤ %.0f", r.most)
		all = append(all,
			row{name: "publish the first signed state of a device, " + r.name + ": requests", bench: bench, unit: "first-requests/state", target: target, limit: r.most},
			row{name: "the same: the next state", bench: bench, unit: "next-requests/state", target: target, limit: r.most},
		)
	}
	const push = "testenv/scale.BenchmarkStatePush"
	return append(all,
		row{
			name: "state push, the first and the next to one device, in a repository of 10,000, distribution v3: requests", bench: push,
			unit: "among-requests/device", peerUnit: "alone-requests/device", theirs: "in an empty one", target: "the same", ratio: 1,
		},
		row{name: "the same: lists of tags", bench: push, unit: "among-lists/device", target: "none", limit: 0.5},
	)
}

func siteRows() []row {
	all := []row{{
		name: "mirror of a verified state with an image of 300 MiB to an empty registry", bench: "testenv/bench.BenchmarkMirror", unit: "ours-ms",
		peerUnit: "oras-ms", theirs: "oras cp -r of the image, which verifies nothing", target: "≤ 1.1 ×", ratio: 1.1,
	}}
	for _, r := range []struct{ check, name string }{
		{"signatures", "mirror of 100 devices to a site that is up to date, with a look for new signatures"}, {"tags", "the same with --check tags"},
	} {
		bench := "testenv/bench.BenchmarkMirrorAgain/" + r.check
		all = append(all,
			row{name: r.name + ": requests of a manifest, both registries", bench: bench, unit: "requests/manifest", target: "≤ 1", limit: 1},
			row{name: "the same: blobs read or sent", bench: bench, unit: "blobs/mirror", target: "none", limit: 0.5},
		)
	}
	return all
}

func sizeRows() []row {
	var all []row
	for _, p := range platforms() {
		all = append(all, row{
			name: "static stripped binary: longshore-agent, linux/" + p, bench: "size of longshore-agent for " + p, unit: "MiB",
			target: "≤ 28 MiB", limit: 28,
		})
	}
	return append(all,
		row{name: "static stripped binary: longshore, this machine", bench: "size of longshore", unit: "MiB"},
		row{name: "static stripped binary: longshore-fleet, this machine", bench: "size of longshore-fleet", unit: "MiB"},
	)
}

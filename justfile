# Every recipe is a line or two that can be typed by hand. Get just with: npm install rust-just

tool := "go tool -modfile=testenv/tools/go.mod"
programs := "longshore longshore-agent longshore-fleet"

# list the recipes
default:
    @{{just_executable()}} --list

# what a commit must pass, on any machine
check: fmt-check lint test

# format all files
fmt:
    git ls-files '*.go' | xargs {{tool}} gofumpt -w

# fail when a file is not formatted
fmt-check:
    test -z "$(git ls-files '*.go' | xargs {{tool}} gofumpt -l | tee /dev/stderr)"

# a tidy go.mod, vet, staticcheck, and the import rules
lint:
    go mod tidy -diff && go vet ./... && {{tool}} staticcheck ./...
    go test ./testenv/rules

# all tests; those that this machine cannot run are skipped
test *packages='./...':
    go run ./cmd/testenv test --no-lint --lenient {{packages}}

# all tests on real programs, as continuous integration runs them
test-real:
    go run ./cmd/testenv test

# what takes hours: all tests at full length in a random order, and the long runs; needs root
nightly:
    go run ./cmd/testenv test --nightly
    go run ./cmd/testenv soak power-cut --rounds 200
    go run ./cmd/testenv soak chaos --duration 1h
    go run ./cmd/testenv soak load

# fuzz one target: just fuzz ./artifacts/strict FuzzYAML 1m
fuzz package target time='30s':
    go test -run '^$' -fuzz '^{{target}}$' -fuzztime {{time}} {{package}}

# rewrite the golden files, and show which changed
golden *packages='./...':
    UPDATE_GOLDEN=1 go test {{packages}}
    git diff --stat

# write the modules that each program links into cmd/*/deps.txt, and show what changed
deps:
    for c in {{programs}}; do go list -deps -f '{{{{with .Module}}{{{{.Path}}{{{{end}}' ./cmd/$c | sort -u >cmd/$c/deps.txt || exit; done
    git diff --stat -- 'cmd/*/deps.txt'

# static stripped binaries for every platform, in dist/
build:
    for a in amd64 arm64 arm riscv64; do CGO_ENABLED=0 GOOS=linux GOARCH=$a GOARM=7 go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o dist/linux-$a/ ./cmd/longshore ./cmd/longshore-agent ./cmd/longshore-fleet || exit; done

# a release in an empty dist/: archives, SBOMs, provenance, checksums, signatures: just release 1.4.0 --key release.key (or --unsigned)
release version *flags:
    go run ./cmd/testenv release {{flags}} {{version}}

# the main job on real servers, narrated; needs root
demo *flags:
    go run ./cmd/testenv demo {{flags}}

# a playground: registries, a device, a fleet endpoint; prints what to type; needs root
up:
    go run ./cmd/testenv up

# measure; needs root
bench *flags:
    go run ./cmd/testenv bench {{flags}}

# long runs: just soak power-cut --rounds 200 --seed N; just soak chaos --duration 1h; just soak load; needs root
soak *flags:
    go run ./cmd/testenv soak {{flags}}

package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// maxTyped bounds how many commands lead from a checkout to an application that answers, the start of the playground
// included.
const maxTyped = 6

// The playground starts, what it prints is what docs/quickstart.md and README.md show, the application answers when it has
// been typed, and Ctrl-C leaves nothing behind.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	if err := testenv.InstallDebian(t.Context(), os.Stderr, "curl"); err != nil {
		testenv.Unavailable(t, "curl: %v", err)
	}
	up := startUp(t, "go", "run", "./cmd/testenv", "up")
	block, page := up.ready(t)
	commands := strings.Split(strings.ReplaceAll(strings.TrimSpace(block), "\\\n", ""), "\n")
	if len(commands)+1 > maxTyped {
		t.Errorf("%d commands are to be typed, want at most %d:\n%s", len(commands)+1, maxTyped, block)
	}
	for _, name := range []string{"docs/quickstart.md", "README.md"} {
		text, err := os.ReadFile(filepath.Join(up.cmd.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range append([]string{"    go run ./cmd/testenv up"}, commands[1:]...) {
			if !strings.Contains(string(text), "\n"+command+"\n") {
				t.Errorf("%s lacks what is to be typed: %q", name, command)
			}
		}
		for _, variable := range regexp.MustCompile(`\$[A-Z_]+`).FindAllString(string(text), -1) {
			if !strings.Contains(commands[0], " "+variable[1:]+"=") {
				t.Errorf("%s names %s, which the first line does not set: %s", name, variable, commands[0])
			}
		}
	}
	release(t, block, page, "bash", "-c")
	ownProject(t, commands[0])
	up.interrupt(t)
}

// ownProject publishes a project of the reader beside the example, with an image in the plain registry. The first line of
// what is printed gives its environment.
func ownProject(t *testing.T, environment string) {
	t.Helper()
	plain := &testenv.RegistryServer{Host: regexp.MustCompile(`PLAIN_REGISTRY=(\S+)`).FindStringSubmatch(environment)[1]}
	image, err := testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Push(t.Context(), "own/toolbox:1", image); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "bash", "-c", "set -e\n"+environment+`
		mkdir own && echo "services: {web: {image: $PLAIN_REGISTRY/own/toolbox:1, command: [serve, '8080', hello]}}" >own/compose.yaml
		longshore component push ./own $REGISTRY/plant/components/own:1.0.0
		longshore state push --device press-07 --key release.key --component $REGISTRY/plant/components/own:1.0.0 $REGISTRY/plant/state
		longshore-agent sync && longshore-agent ps`).CombinedOutput()
	if n := strings.Count(string(out), " running "); err != nil || n != 4 {
		t.Errorf("%d services run, want 3 of the example and 1: %v\n%s", n, err, out)
	}
}

// What docs/quickstart.md says that a machine needs is enough: a new Debian with Go and the packages of its first paragraph.
// The caches of this machine spare the test the builds.
func TestQuickstartOnNewDebian(t *testing.T) {
	if !testenv.Nightly() {
		t.Skip("takes minutes; LONGSHORE_NIGHTLY=1 runs it")
	}
	if err := testenv.InstallDebian(t.Context(), os.Stderr, "debootstrap"); err != nil {
		testenv.Unavailable(t, "debootstrap: %v", err)
	}
	debian := filepath.Join(t.TempDir(), "debian")
	out, err := exec.CommandContext(t.Context(), "bash", "-c", `. /etc/os-release && debootstrap --variant=minbase "$VERSION_CODENAME" "$1" && chroot "$1" apt-get install -y -q --no-install-recommends gcc libc6-dev curl`, "bash", debian).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	up := startUp(t, "unshare", "--mount", "bash", "-euc", `
		cache=$(go env GOCACHE) modules=$(go env GOMODCACHE) go=$(go env GOROOT) source=$PWD
		mount --bind "$1" "$1"; mkdir "$1/host"
		mount --rbind /dev "$1/dev"; mount --rbind /sys "$1/sys"; mount -t proc proc "$1/proc"
		for dir in "$cache" "$modules" "$go" "$source" "$2"; do mkdir -p "$1$dir"; mount --bind "$dir" "$1$dir"; done
		cd "$1"; pivot_root . host # not only chroot: runc needs the root of the mount namespace
		exec chroot . env -i HOME=/root GOCACHE="$cache" GOMODCACHE="$modules" LONGSHORE_TESTENV_CACHE="$2" \
			PATH="$go/bin:/usr/sbin:/usr/bin:/sbin:/bin" bash -euc 'umount --lazy /host; cd "$1"; exec go run -buildvcs=false ./cmd/testenv up' bash "$source"`,
		"bash", debian, cacheDir(t))
	block, page := up.ready(t)
	release(t, block, page, "nsenter", "--target", fmt.Sprint(up.cmd.Process.Pid), "--mount", "--root", "--wd",
		"env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c")
	up.interrupt(t)
}

func cacheDir(t *testing.T) string {
	t.Helper()
	dir, err := testenv.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// playground is a running "testenv up".
type playground struct {
	log   string
	cmd   *exec.Cmd
	ended chan error
}

// startUp runs a command that starts a playground, in the checkout.
func startUp(t *testing.T, argv ...string) *playground {
	t.Helper()
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "up.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	up := &playground{log: log.Name(), cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan error, 1)}
	up.cmd.Dir, up.cmd.Stdout, up.cmd.Stderr = root, log, log
	up.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a terminal does: Ctrl-C is for go and for what it runs
	if err := up.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { up.ended <- up.cmd.Wait() }() // ends with the process
	t.Cleanup(func() {                        // when the test has failed before
		_ = syscall.Kill(-up.cmd.Process.Pid, syscall.SIGINT)
		<-up.ended
	})
	return up
}

func (up *playground) output() string {
	text, err := os.ReadFile(up.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// ready waits until the playground has printed what to type and the address of the fleet page.
func (up *playground) ready(t *testing.T) (block, page string) {
	t.Helper()
	err := testenv.Await(t.Context(), 5*time.Minute, func() error {
		text := up.output()
		_, after, _ := strings.Cut(text, "as root:\n")
		var ok bool
		if block, page, ok = strings.Cut(after, "\n\nThe fleet page: "); ok && strings.HasSuffix(page, "everything.\n") {
			page, _, _ = strings.Cut(page, "\n")
			return nil
		}
		select {
		case err := <-up.ended:
			up.ended <- err
			t.Fatalf("testenv up ended: %v\n%s", err, text)
		default:
		}
		return fmt.Errorf("not ready:\n%s", text)
	})
	if err != nil {
		t.Fatal(err)
	}
	return block, page
}

// release types what is printed into a shell, until the application answers, and opens the fleet page in a browser until it shows it.
func release(t *testing.T, block, page string, shell ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "set -e\n"+block)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"received"`) {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := testenv.InstallBrowser(t.Context(), os.Stderr); err != nil {
		testenv.Unavailable(t, "a browser: %v", err)
	}
	testenv.Eventually(t, time.Minute, "the fleet page shows the application", func() error {
		browser := testenv.Browser(t.TempDir(), page, "--dump-dom", "--enable-logging=stderr")
		var log bytes.Buffer
		cmd := exec.CommandContext(t.Context(), browser[0], browser[1:]...)
		cmd.Stderr = &log
		shown, err := cmd.Output()
		if strings.Contains(log.String(), "CONSOLE") { // where the browser reports what the page's policy forbids
			t.Errorf("the browser complains:\n%s", &log)
		}
		if err == nil && !strings.Contains(string(shown), "line-monitor") {
			err = fmt.Errorf("page:\n%s", shown)
		}
		return err
	})
}

// interrupt types Ctrl-C and waits until everything is removed.
func (up *playground) interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-up.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case err := <-up.ended:
		up.ended <- err
	case <-ctx.Done():
		t.Fatal("still running a minute after Ctrl-C")
	}
	if text := up.output(); !strings.Contains(text, "Nothing is left behind") {
		t.Errorf("after Ctrl-C:\n%s", text)
	}
}

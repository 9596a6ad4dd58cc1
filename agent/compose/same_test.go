package compose_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/sirupsen/logrus"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// A value means on a device what it means to compose-go, whose loader reads the same projects here.
func TestReadsAsComposeGoDoes(t *testing.T) {
	logrus.SetOutput(io.Discard)
	t.Cleanup(func() { logrus.SetOutput(os.Stderr) })
	archives, err := filepath.Glob(filepath.Join("testdata", "corpus", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, file := range archives {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, project := range corpusSplit(t, string(data)) {
			name, files, want := corpusFiles(t, project)
			if !strings.HasPrefix(want, "valid: ") || name == "real-time-with-shared-ipc" { // compose-go takes no duration for cpu_rt_period
				continue
			}
			env := corpusValues(files)
			packed, err := compose.Pack(t.Context(), "", files)
			if err != nil {
				t.Fatal(err)
			}
			archive, err := corpusArchive(packed)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := compose.Load(t.Context(), archive, compose.Options{Environment: env, AllowUnpinned: true})
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
				WorkingDir: "/", ConfigFiles: []types.ConfigFile{{Filename: composefile.Name, Content: packed.Compose}}, Environment: env,
			}, func(o *loader.Options) {
				o.SetProjectName(ours.Name, true)
				o.Profiles = []string{"*"}
				o.SkipNormalization, o.SkipConsistencyCheck, o.SkipResolveEnvironment, o.SkipResolveLabels, o.ResolvePaths = true, true, true, true, false
			})
			if err != nil {
				t.Errorf("%s: compose-go refuses what a device takes: %v", name, err)
				continue
			}
			for i := range ours.Services {
				s := &ours.Services[i]
				a, b := valuesOfTheirs(theirs.Services[s.Name], env), valuesOfOurs(s)
				if len(theirs.Services[s.Name].EnvFiles)+len(theirs.Services[s.Name].LabelFiles) > 0 { // files say more
					a.Environment, b.Environment, a.Labels, b.Labels = nil, nil, nil, nil
				}
				if diff := cmp.Diff(a, b, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s: service %s (-compose-go +device):\n%s", name, s.Name, diff)
				}
				compared++
			}
		}
	}
	if compared < corpusProjects {
		t.Errorf("compared %d services, want at least %d", compared, corpusProjects)
	}
}

// values are what a service says that needs no more than its type to be read.
type values struct {
	Command, Entrypoint, Expose, Test                        []string
	WorkingDir, User, Hostname, StopSignal                   string
	Labels                                                   map[string]string
	Environment                                              []string
	ReadOnly, NoHealth                                       bool
	StopGrace, Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries, CPUs, Memory, PIDs, Shm                         int64
	PostStart, PreStop                                       [][]string
	Privileged, Init, TTY, Stdin                             bool
	CapAdd, Groups                                           []string
	Sysctls, Annotations                                     map[string]string
}

func valuesOfOurs(s *workload.Service) values {
	v := values{
		Command: s.Command, Entrypoint: s.Entrypoint, Expose: s.Expose, WorkingDir: s.WorkingDir, User: s.User, Hostname: s.Hostname,
		StopSignal: s.StopSignal, Labels: s.Labels, Environment: s.Environment, ReadOnly: s.ReadOnly, NoHealth: s.NoHealth, StopGrace: s.StopGrace,
		CPUs: s.Resources.NanoCPUs, Memory: s.Resources.MemoryBytes, PIDs: s.Resources.PIDs, Shm: s.Resources.ShmBytes,
		Init: s.Init, TTY: s.TTY, Stdin: s.Stdin, Groups: s.Groups, Sysctls: s.Sysctls, Annotations: s.Annotations,
	}
	if s.Security != nil {
		v.Privileged = s.Security.Privileged
		v.CapAdd = s.Security.CapAdd
	}
	if h := s.Health; h != nil && h.Probe.HTTP == nil && h.Probe.TCP == 0 {
		v.Test, v.Interval, v.Timeout, v.StartPeriod, v.StartInterval, v.Retries = h.Probe.Exec, h.Interval, h.Timeout, h.StartPeriod, h.StartInterval, int64(h.Retries)
	}
	for _, h := range s.PostStart {
		v.PostStart = append(v.PostStart, h.Command)
	}
	for _, h := range s.PreStop {
		v.PreStop = append(v.PreStop, h.Command)
	}
	return v
}

func valuesOfTheirs(c types.ServiceConfig, env types.Mapping) values {
	seconds := func(d *types.Duration, otherwise time.Duration) time.Duration {
		if d == nil || *d == 0 {
			return otherwise
		}
		return time.Duration(*d)
	}
	v := values{
		Command: c.Command, Entrypoint: c.Entrypoint, Expose: c.Expose, WorkingDir: c.WorkingDir, User: c.User, Hostname: c.Hostname,
		StopSignal: c.StopSignal, Labels: c.Labels, ReadOnly: c.ReadOnly, StopGrace: seconds(c.StopGracePeriod, 0),
		CPUs: int64(float64(c.CPUS)*1e6+0.5) * 1000, Memory: int64(c.MemLimit), PIDs: c.PidsLimit, Shm: int64(c.ShmSize),
		Privileged: c.Privileged, Init: c.Init != nil && *c.Init, TTY: c.Tty, Stdin: c.StdinOpen, Groups: c.GroupAdd, Sysctls: c.Sysctls,
		Annotations: c.Annotations,
	}
	for _, name := range c.CapAdd {
		v.CapAdd = append(v.CapAdd, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	}
	for name, value := range c.Environment.Resolve(env.Resolve) {
		if value != nil {
			v.Environment = append(v.Environment, name+"="+*value)
		}
	}
	slices.Sort(v.Environment)
	if c.Deploy != nil && c.Deploy.Resources.Limits != nil {
		l := c.Deploy.Resources.Limits
		v.CPUs = max(v.CPUs, int64(float64(l.NanoCPUs)*1e6+0.5)*1000)
		v.Memory, v.PIDs = max(v.Memory, int64(l.MemoryBytes)), max(v.PIDs, l.Pids)
	}
	v.PIDs = max(v.PIDs, 0) // -1: no limit
	if h := c.HealthCheck; h != nil {
		switch {
		case h.Disable || len(h.Test) > 0 && h.Test[0] == "NONE":
			v.NoHealth = true
		case h.Extensions["x-longshore-probe"] != nil:
		default:
			switch {
			case len(h.Test) > 0 && h.Test[0] == "CMD-SHELL":
				v.Test = []string{"/bin/sh", "-c", h.Test[1]}
			case len(h.Test) > 0:
				v.Test = h.Test[1:]
			}
			v.Interval, v.Timeout = seconds(h.Interval, 30*time.Second), seconds(h.Timeout, 30*time.Second)
			v.StartPeriod, v.StartInterval, v.Retries = seconds(h.StartPeriod, 0), seconds(h.StartInterval, 0), 3
			if h.Retries != nil && *h.Retries > 0 {
				v.Retries = int64(*h.Retries)
			}
		}
	}
	for _, h := range c.PostStart {
		v.PostStart = append(v.PostStart, h.Command)
	}
	for _, h := range c.PreStop {
		v.PreStop = append(v.PreStop, h.Command)
	}
	return v
}

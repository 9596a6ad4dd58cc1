package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

const device = world.Device

// boot starts the agent and waits until it answers.
func (w *show) boot(ctx context.Context) error {
	if err := w.Boot(ctx); err != nil {
		return err
	}
	return testenv.Await(ctx, time.Minute, func() error {
		_, err := w.Status(ctx)
		return errors.Join(err, w.Agent.Running())
	})
}

// processes are the first processes of the device's containers, by service.
func processes(s *status.Status) map[string]uint32 {
	out := map[string]uint32{}
	for _, d := range s.Deployments {
		for _, c := range d.Components {
			for _, sv := range c.Services {
				out[sv.Name] = sv.PID
			}
		}
	}
	return out
}

// hasProblem is nil when the status has a problem with the code.
func (w *show) hasProblem(ctx context.Context, code codes.Code) error {
	s, err := w.Status(ctx)
	if err != nil {
		return err
	}
	var codes []string
	for _, problem := range s.Problems {
		if problem.Code == code {
			return nil
		}
		codes = append(codes, string(problem.Code))
	}
	return fmt.Errorf("problems are %v, want %s", codes, code)
}

// answers asks the web front until its answer has a reading, which travels from sensor to broker to front.
func (w *show) answers(ctx context.Context) (string, error) {
	var body []byte
	err := testenv.Await(ctx, time.Minute, func() (err error) {
		if body, err = testenv.Get(ctx, w.webURL+"/readings"); err == nil && !strings.Contains(string(body), `"`+device+`"`) {
			err = fmt.Errorf("no reading of %s in %s", device, body)
		}
		return err
	})
	return string(body), err
}

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/panel"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// Who decides at the panel of the pictures.
const (
	panelPerson = "ana"
	panelPIN    = "481592"
)

// panelHeight bounds the pictures of the panel, in pixels.
const panelHeight = 1060

// PanelPictures writes panel-360.png and panel-1280.png into a folder: the page of a real agent for the machine's panel, on which a change waits. It needs
// Debian's chromium, and installs it.
func PanelPictures(ctx context.Context, out io.Writer, dir string) error {
	return panelTour(ctx, out, dir, world.Options{}, "", nil)
}

// panelTour decides everything that can be decided at a panel, in a real browser, while the device has no registry: with a finger on a narrow dark
// screen without scripts, then with a keyboard on a wide one; and both the other way round in the language of a file of translations, "": not. The device
// is made as o says; nil asked: nobody wants to know what the browsers asked for.
func panelTour(ctx context.Context, out io.Writer, dir string, o world.Options, translations string, asked func(elsewhere []string)) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := testenv.InstallBrowser(ctx, out); err != nil {
		return err
	}
	o.Name, o.Pool = "panel", "10.208.0.0/16"
	var p *panelist
	return run(ctx, out, []scene{
		{"A device, and an update that waits", func(ctx context.Context, w *show) error {
			if err := w.startWorld(ctx, o); err != nil {
				return err
			}
			texts, err := panel.English()
			if err != nil {
				return err
			}
			p = &panelist{show: w, texts: texts}
			return w.steps(ctx, []step{{"images of the application", w.pushImages}, {"release 1.0.0", p.install}, {"release 1.1.0 waits, and the registry is away", p.update}})
		}},
		{"At its panel", func(ctx context.Context, w *show) error {
			narrow := testenv.TabOptions{Network: o.Network, Width: 360, Height: 740, Touch: true, Dark: true, NoScripts: true}
			wide := testenv.TabOptions{Network: o.Network, Width: 1280, Height: 800}
			steps := []step{
				{"by touch, 360 pixels, dark, without scripts", p.tour(narrow, filepath.Join(dir, "panel-360.png"), asked)},
				{"by keyboard, 1280 pixels", p.tour(wide, filepath.Join(dir, "panel-1280.png"), asked)},
			}
			if translations != "" {
				narrow.Touch, narrow.Dark, wide.Touch, wide.Dark = false, false, true, true
				steps = append(steps,
					step{"another language", p.translate(translations)},
					step{"by keyboard, 360 pixels, without scripts", p.tour(narrow, "", asked)},
					step{"by touch, 1280 pixels, dark", p.tour(wide, "", asked)},
				)
			}
			return w.steps(ctx, append(steps, step{"everything is recorded", p.recorded}))
		}},
	}, nil)
}

// panelist is somebody at the panel.
type panelist struct {
	*show
	url   string
	tab   *testenv.Tab
	texts *panel.Messages
	tours int
}

func (p *panelist) install(ctx context.Context) (string, error) {
	if p.Registry.Username != "" {
		if err := p.Login(ctx); err != nil {
			return "", err
		}
	}
	if _, err := p.Run(ctx, "longshore", "key", "generate", "release"); err != nil {
		return "", err
	}
	for project, version := range []string{1: "1.0.0", 2: "1.1.0"} {
		if version == "" {
			continue
		}
		if _, err := p.pushComponent(ctx, project, version); err != nil {
			return "", err
		}
	}
	var ports []uint16
	for range 2 {
		port, err := testenv.FreePort()
		if err != nil {
			return "", err
		}
		ports = append(ports, port)
	}
	p.webURL, p.url = fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d/", ports[1])
	if _, err := p.pushState(ctx, "1.0.0"); err != nil {
		return "", err
	}
	if err := p.Init(ctx); err != nil {
		return "", err
	}
	pin, err := panel.NewPIN(panelPerson, panelPIN)
	if err != nil {
		return "", err
	}
	file := p.Path("etc/agent.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text = fmt.Appendf(text, "approvals: {changes: [images, configuration, parameters, removal]}\npanel: {listen: %q, pinFile: panel.pins}\n", strings.Trim(p.url, "htp:/"))
	if err := errors.Join(os.WriteFile(file, text, 0o644), os.WriteFile(p.Path("etc/panel.pins"), []byte(pin+"\n"), 0o600)); err != nil {
		return "", err
	}
	if err := p.boot(ctx); err != nil {
		return "", err
	}
	return p.url, p.Settled(ctx, 1, time.Minute)
}

func (p *panelist) update(ctx context.Context) (string, error) {
	if _, err := p.pushState(ctx, "1.1.0"); err != nil {
		return "", err
	}
	err := testenv.Await(ctx, 3*time.Minute, func() error {
		c, err := p.waits(ctx)
		if err == nil && (c.Waiting == nil || c.Waiting.Code != codes.ApprovalNeeded || c.Bytes > 0) {
			err = fmt.Errorf("the change is %+v", c)
		}
		return err
	})
	p.Registry.Down()
	return "", err
}

// waits is the change that waits.
func (p *panelist) waits(ctx context.Context) (status.Change, error) {
	text, err := p.Control(ctx, "changes", "-o", "json")
	if err != nil {
		return status.Change{}, err
	}
	var all []status.Change
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
		return status.Change{}, fmt.Errorf("%d changes, want one: %w\n%s", len(all), err, text)
	}
	return all[0], nil
}

// tour logs in and decides everything, one after the other.
func (p *panelist) tour(o testenv.TabOptions, picture string, asked func([]string)) func(context.Context) (string, error) {
	return func(ctx context.Context) (_ string, err error) {
		p.tours++
		if p.tab, err = testenv.OpenTab(ctx, p.Path(fmt.Sprintf("browser-%d", p.tours)), o); err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, p.tab.Close()) }()
		for _, do := range []func(context.Context) error{
			p.logIn, p.reject(o, picture), p.postpone, p.approve, p.rollBack, p.release,
			func(ctx context.Context) error { return p.press(ctx, "#logout", "#name, #login") },
		} {
			if err := do(ctx); err != nil {
				return "", err
			}
		}
		trouble := slices.DeleteFunc(p.tab.Trouble, func(s string) bool { return strings.Contains(s, "401 (Unauthorized) "+p.url+"login") }) // the wrong PIN
		if len(trouble) > 0 {
			return "", fmt.Errorf("the browser complains: %s", strings.Join(trouble, "; "))
		}
		if asked != nil {
			asked(p.tab.Elsewhere(p.url))
		}
		return fmt.Sprintf("%d requests", len(p.tab.Requests)), nil
	}
}

// press presses something, and waits for what comes next.
func (p *panelist) press(ctx context.Context, selector, next string) error {
	if err := p.tab.Press(ctx, selector); err != nil {
		return err
	}
	return p.see(ctx, next, "")
}

// see waits for a text on a page that can be used on its screen.
func (p *panelist) see(ctx context.Context, selector, text string) error {
	err := testenv.Await(ctx, 3*time.Minute, func() error {
		var there bool
		if err := p.tab.Value(fmt.Sprintf("document.readyState === 'complete' && document.querySelector(%q) !== null", selector), &there); err != nil || there {
			return err
		}
		return fmt.Errorf("%s is not on the page", selector)
	})
	if err == nil && text != "" {
		_, err = p.tab.See(ctx, selector, text)
	}
	return errors.Join(err, p.tab.Usable())
}

func (p *panelist) logIn(ctx context.Context) error {
	if err := errors.Join(p.tab.Open(p.url), p.see(ctx, "#pin", "")); err != nil {
		return err
	}
	for _, c := range []struct{ pin, next, text string }{{"000000", "#flash", p.texts.Text("login.wrong")}, {panelPIN, "#live", p.texts.Text("changes")}} {
		if err := errors.Join(p.tab.Type(ctx, "#name", panelPerson), p.tab.Type(ctx, "#pin", c.pin), p.tab.Press(ctx, "#submit"), p.see(ctx, c.next, c.text)); err != nil {
			return err
		}
	}
	return nil
}

// decision opens the page of the change, does something there and waits until the overview tells the result.
func (p *panelist) decision(ctx context.Context, result string, do ...func() error) error {
	c, err := p.waits(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(p.effects(ctx, ".change", c), p.press(ctx, ".decide", "#approve"), p.effects(ctx, "main", c)); err != nil {
		return err
	}
	for _, f := range do {
		if err := f(); err != nil {
			return err
		}
	}
	told, _, _ := strings.Cut(p.texts.Text("result."+result, "name", c.Deployment), "{time}")
	return p.see(ctx, "#flash", told)
}

// effects looks for what a change would do, with what it would restart and load.
func (p *panelist) effects(ctx context.Context, selector string, c status.Change) error {
	for _, want := range []string{
		"1.0.0 → 1.1.0", p.texts.Text("change.load"), p.texts.Text("change.loaded"),
		p.texts.Text("change.restarts"), p.texts.Text("change.restarts.of", "restarts", c.Restarts, "containers", c.Containers),
	} {
		if err := p.see(ctx, selector, want); err != nil {
			return err
		}
	}
	return nil
}

// translate has the agent serve the page with the texts of a file.
func (p *panelist) translate(file string) func(context.Context) (string, error) {
	return func(ctx context.Context) (_ string, err error) {
		if p.texts, err = panel.ReadMessages(file); err != nil {
			return "", err
		}
		config := p.Path("etc/agent.yaml")
		text, err := os.ReadFile(config)
		if err != nil {
			return "", err
		}
		text = bytes.Replace(text, []byte("pinFile: panel.pins"), fmt.Appendf(nil, "pinFile: panel.pins, translations: %q", file), 1)
		if err := errors.Join(os.WriteFile(config, text, 0o644), p.Agent.Stop(), p.boot(ctx)); err != nil {
			return "", err
		}
		return p.texts.Lang, p.waitsFor(ctx, codes.ApprovalNeeded)
	}
}

// waitsFor waits until the change does, for a reason.
func (p *panelist) waitsFor(ctx context.Context, code codes.Code) error {
	return testenv.Await(ctx, 3*time.Minute, func() error {
		c, err := p.waits(ctx)
		if err == nil && (c.Waiting == nil || c.Waiting.Code != code) {
			err = fmt.Errorf("the change is %+v", c)
		}
		return err
	})
}

func (p *panelist) reject(o testenv.TabOptions, picture string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := p.see(ctx, ".runs", "1.0.0"); err != nil {
			return err
		}
		if o.Width > 1000 && picture != "" {
			if err := p.tab.Picture(picture, panelHeight); err != nil {
				return err
			}
		}
		why := "camera 2 is not calibrated"
		if err := p.decision(ctx, "rejected", func() error {
			if o.Width > 1000 || picture == "" {
				return nil
			}
			return p.tab.Picture(picture, panelHeight)
		}, func() error { return p.tab.Type(ctx, "#reason", why) }, func() error { return p.tab.Press(ctx, "#reject") }); err != nil {
			return err
		}
		if err := p.see(ctx, ".why", why); err != nil {
			return err
		}
		return p.decided(ctx, codes.ChangeRejected)
	}
}

// decided looks from outside of the browser.
func (p *panelist) decided(ctx context.Context, code codes.Code) error {
	c, err := p.waits(ctx)
	if err == nil && (c.Waiting == nil || c.Waiting.Code != code || c.Decision == nil || c.Decision.Via != "panel" || c.Decision.By != panelPerson+" at the panel") {
		err = fmt.Errorf("the change is %+v by %+v, want %s by %s", c.Waiting, c.Decision, code, panelPerson)
	}
	return err
}

func (p *panelist) postpone(ctx context.Context) error {
	err := p.decision(ctx, "postponed",
		func() error { return p.tab.Choose(ctx, "for", "8h") },
		func() error { return p.tab.Type(ctx, "#later", "end of the shift") },
		func() error { return p.tab.Press(ctx, "#postpone") })
	if err != nil {
		return err
	}
	c, err := p.waits(ctx)
	if err == nil && c.Decision != nil && (c.Decision.Until.Before(time.Now().Add(7*time.Hour+50*time.Minute)) || c.Decision.Reason != "end of the shift") {
		err = fmt.Errorf("postponed as %+v", c.Decision)
	}
	return errors.Join(err, p.decided(ctx, codes.ChangePostponed))
}

func (p *panelist) approve(ctx context.Context) error {
	if err := p.decision(ctx, "approved", func() error { return p.tab.Press(ctx, "#approve") }); err != nil {
		return err
	}
	return p.runs(ctx, 2)
}

// runs waits until the device runs a generation, whatever it cannot reach.
func (p *panelist) runs(ctx context.Context, generation uint64) error {
	return testenv.Await(ctx, 3*time.Minute, func() error {
		s, err := p.Status(ctx)
		if err == nil && (s.Committed == nil || s.Running == nil || s.Running.Generation != generation || s.Phase != status.PhaseInSync && s.Phase != status.PhaseHeld) {
			err = fmt.Errorf("device is %q, running %+v, want generation %d; problems %+v", s.Phase, s.Running, generation, s.Problems)
		}
		return err
	})
}

func (p *panelist) rollBack(ctx context.Context) error {
	if err := p.press(ctx, "#rollback", "#reason"); err != nil {
		return err
	}
	if err := errors.Join(p.tab.Type(ctx, "#reason", "line 3 stops"), p.tab.Press(ctx, "#submit"), p.see(ctx, "#flash", p.texts.Text("result.rolledback", "generation", 1)), p.see(ctx, "#hold", "line 3 stops")); err != nil {
		return err
	}
	s, err := p.Status(ctx)
	if err == nil && (s.Hold == nil || s.Hold.Via != "panel" || !strings.HasPrefix(s.Hold.By, panelPerson)) {
		err = fmt.Errorf("the hold is %+v", s.Hold)
	}
	return errors.Join(err, p.runs(ctx, 1))
}

func (p *panelist) release(ctx context.Context) error {
	if err := p.press(ctx, "#release", "#submit"); err != nil {
		return err
	}
	if err := errors.Join(p.tab.Press(ctx, "#submit"), p.see(ctx, "#flash", p.texts.Text("result.released", "generation", 1))); err != nil {
		return err
	}
	return p.waitsFor(ctx, codes.ApprovalNeeded)
}

func (p *panelist) recorded(ctx context.Context) (string, error) {
	text, err := p.Control(ctx, "events")
	for _, what := range []string{
		"rejected by ana at the panel: camera 2 is not calibrated", "postponed by ana at the panel: end of the shift", "approved by ana at the panel",
		"rolled back by ana at the panel: line 3 stops", "released by ana at the panel",
	} {
		if n := strings.Count(text, what); err == nil && n < p.tours {
			err = fmt.Errorf("%q is recorded %d times:\n%s", what, n, text)
		}
	}
	if err == nil && strings.Contains(p.Agent.Log(10000), panelPIN) {
		err = errors.New("the agent's log has a PIN")
	}
	return "", err
}

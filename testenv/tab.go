package testenv

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	tabCall  = time.Minute // of one command of the browser
	tabWait  = time.Minute // until a page shows what is waited for
	tabStops = 100         // that the Tab key makes on a page, at most
)

// TabOptions say what a page is opened on.
type TabOptions struct {
	Network       string // path of the network namespace; "": this machine's
	Width, Height int    // pixels
	Touch         bool   // a screen that is touched; else a keyboard
	Dark          bool   // the person prefers dark colours
	NoScripts     bool
}

// Tab is a page in a real browser, which a test uses as a person does: it touches what is on the screen, or goes to it with the Tab key. It is
// driven by the browser's DevTools protocol over two pipes. One goroutine uses it.
type Tab struct {
	Requests []string // URLs that the page and the browser for it asked for
	Trouble  []string // what the browser complains about: errors of scripts, and what the page's policy forbids

	o       TabOptions
	cmd     *exec.Cmd
	to      *os.File
	from    *os.File
	answers *bufio.Reader
	session string
	calls   int
}

// OpenTab starts a browser; dir holds its profile. The caller closes it.
func OpenTab(ctx context.Context, dir string, o TabOptions) (_ *Tab, err error) {
	argv := Browser(dir, "about:blank", "--remote-debugging-pipe", "--hide-scrollbars", "--force-color-profile=srgb",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") // else the browser itself asks for names of its maker; pages here have addresses
	if o.Network != "" {
		argv = append([]string{"nsenter", "--net=" + o.Network}, argv...)
	}
	theirIn, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), to.Close())
	}
	t := &Tab{o: o, cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), to: to, from: from, answers: bufio.NewReaderSize(from, 64<<10)}
	t.cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	err = errors.Join(t.cmd.Start(), theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close())
	}
	if err := t.setUp(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tab) setUp() error {
	var target struct{ TargetID string }
	if err := t.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return err
	}
	var attached struct{ SessionID string }
	if err := t.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return err
	}
	t.session = attached.SessionID
	scheme := map[bool]string{false: "light", true: "dark"}[t.o.Dark]
	for _, c := range []struct {
		method string
		params map[string]any
	}{
		{"Page.enable", nil},
		{"Network.enable", nil},
		{"Runtime.enable", nil},
		{"Log.enable", nil},
		{"Emulation.setDeviceMetricsOverride", map[string]any{"width": t.o.Width, "height": t.o.Height, "deviceScaleFactor": 1, "mobile": t.o.Touch}},
		{"Emulation.setTouchEmulationEnabled", map[string]any{"enabled": t.o.Touch}},
		{"Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}},
		{"Emulation.setScriptExecutionDisabled", map[string]any{"value": t.o.NoScripts}},
	} {
		if err := t.call(c.method, c.params, nil); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the browser.
func (t *Tab) Close() error {
	_ = t.call("Browser.close", nil, nil) // it may have ended, or be killed below
	err := errors.Join(t.to.Close(), t.from.Close())
	timer := time.AfterFunc(processStop, func() { _ = t.cmd.Process.Kill() })
	defer timer.Stop()
	_ = t.cmd.Wait() // how a browser ends says nothing
	return err
}

// message is a command, an answer or an event; each ends with a zero byte.
type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    any             `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// call gives the browser a command and waits for its answer. Events that come before are noted.
func (t *Tab) call(method string, params, result any) error {
	t.calls++
	m := message{ID: t.calls, Method: method, Params: params}
	if !strings.HasPrefix(method, "Target.") && !strings.HasPrefix(method, "Browser.") {
		m.SessionID = t.session
	}
	data, err := json.Marshal(m)
	if err == nil {
		_, err = t.to.Write(append(data, 0))
	}
	if err == nil {
		err = t.from.SetReadDeadline(time.Now().Add(tabCall))
	}
	for err == nil {
		var line []byte
		if line, err = t.answers.ReadBytes(0); err != nil {
			break
		}
		var got struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if err = json.Unmarshal(line[:len(line)-1], &got); err != nil {
			break
		}
		switch {
		case got.ID == 0:
			t.note(got.Method, got.Params)
			continue
		case got.ID != t.calls:
			continue
		case got.Error != nil:
			return fmt.Errorf("browser: %s: %s", method, got.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(got.Result, result)
	}
	return fmt.Errorf("browser: %s: %w", method, err)
}

func (t *Tab) note(method string, params json.RawMessage) {
	var p struct {
		Request struct{ URL string }
		Entry   struct{ Level, Text, URL string }
		Type    string

		ExceptionDetails struct{ Text string }
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	switch {
	case method == "Network.requestWillBeSent":
		t.Requests = append(t.Requests, p.Request.URL)
	case method == "Log.entryAdded" && p.Entry.Level == "error":
		t.Trouble = append(t.Trouble, p.Entry.Text+" "+p.Entry.URL)
	case method == "Runtime.exceptionThrown", method == "Runtime.consoleAPICalled" && p.Type == "error":
		t.Trouble = append(t.Trouble, method+" "+p.ExceptionDetails.Text)
	}
}

// Open loads a page.
func (t *Tab) Open(url string) error {
	var r struct{ ErrorText string }
	if err := t.call("Page.navigate", map[string]any{"url": url}, &r); err != nil {
		return err
	}
	if r.ErrorText != "" {
		return fmt.Errorf("browser: open %s: %s", url, r.ErrorText)
	}
	return nil
}

// Value is what an expression of JavaScript is on the page.
func (t *Tab) Value(expression string, v any) error {
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Text string }
	}
	if err := t.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r); err != nil {
		return err
	}
	if r.ExceptionDetails != nil {
		return fmt.Errorf("browser: %s: %s", expression, r.ExceptionDetails.Text)
	}
	if len(r.Result.Value) == 0 {
		return fmt.Errorf("browser: %s: no value", expression)
	}
	return json.Unmarshal(r.Result.Value, v)
}

// See waits until the element of a selector has a text, and returns all of it.
func (t *Tab) See(ctx context.Context, selector, text string) (string, error) {
	var all string
	err := Await(ctx, tabWait, func() error {
		all = ""
		err := t.Value(fmt.Sprintf(`document.readyState === "complete" ? (document.querySelector(%q)?.innerText ?? "") : ""`, selector), &all)
		if err == nil && (all == "" || !strings.Contains(all, text)) {
			var page string
			_ = t.Value("document.body.innerText", &page) // for the message
			err = fmt.Errorf("%s is %q, want %q on the page:\n%s", selector, all, text, page)
		}
		return err
	})
	return all, err
}

// Press touches an element, or goes to it with the Tab key and presses Enter.
func (t *Tab) Press(ctx context.Context, selector string) error {
	if _, err := t.See(ctx, "body", ""); err != nil {
		return err
	}
	if !t.o.Touch {
		if err := t.reach(ctx, selector); err != nil {
			return err
		}
		return t.key("Enter", 13, "\r")
	}
	var at []float64
	if err := t.Value(fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"}); const r = e.getBoundingClientRect(); return [r.x + r.width/2, r.y + r.height/2]; })()`, selector), &at); err != nil {
		return fmt.Errorf("touch %s: %w", selector, err)
	}
	if err := t.call("Input.dispatchTouchEvent", map[string]any{"type": "touchStart", "touchPoints": []map[string]float64{{"x": at[0], "y": at[1]}}}, nil); err != nil {
		return err
	}
	return t.call("Input.dispatchTouchEvent", map[string]any{"type": "touchEnd", "touchPoints": []any{}}, nil)
}

// Choose selects a radio button: it touches it, or goes to its group and moves with the arrows.
func (t *Tab) Choose(ctx context.Context, group, value string) error {
	option := fmt.Sprintf("input[name=%s][value=%q]", group, value)
	if t.o.Touch {
		return t.Press(ctx, option)
	}
	if err := t.reach(ctx, fmt.Sprintf("input[name=%s]", group)); err != nil {
		return err
	}
	for range tabStops {
		var there bool
		if err := t.Value(fmt.Sprintf("document.querySelector(%q).checked", option), &there); err != nil || there {
			return err
		}
		if err := t.key("ArrowDown", 40, ""); err != nil {
			return err
		}
	}
	return fmt.Errorf("the arrows do not reach %s", option)
}

// Type writes into a field.
func (t *Tab) Type(ctx context.Context, selector, text string) error {
	if t.o.Touch {
		if err := t.Press(ctx, selector); err != nil {
			return err
		}
	} else if err := t.reach(ctx, selector); err != nil {
		return err
	}
	return t.call("Input.insertText", map[string]any{"text": text}, nil)
}

// reach moves the focus to an element with the Tab key.
func (t *Tab) reach(ctx context.Context, selector string) error {
	if _, err := t.See(ctx, "body", ""); err != nil {
		return err
	}
	for range tabStops {
		var there bool
		if err := t.Value(fmt.Sprintf("document.activeElement.matches(%q)", selector), &there); err != nil || there {
			return err
		}
		if err := t.key("Tab", 9, ""); err != nil {
			return err
		}
	}
	return fmt.Errorf("the Tab key does not reach %s", selector)
}

func (t *Tab) key(name string, code int, text string) error {
	down := map[string]any{"type": "keyDown", "key": name, "code": name, "windowsVirtualKeyCode": code}
	if text != "" {
		down["text"] = text
	}
	if err := t.call("Input.dispatchKeyEvent", down, nil); err != nil {
		return err
	}
	return t.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": name, "code": name, "windowsVirtualKeyCode": code}, nil)
}

// Usable reports what of the page is hard to use: what is smaller than 44 pixels, and a page wider than the screen.
func (t *Tab) Usable() error {
	var bad []string
	const look = `[
		...[...document.querySelectorAll("a, button, input:not([type=hidden]), label.choice")].map(e => [e, (e.closest("label") ?? e).getBoundingClientRect()])
			.filter(([, r]) => r.width < 44 || r.height < 44).map(([e, r]) => e.outerHTML.slice(0, 80) + " is " + r.width + " × " + r.height),
		...(document.documentElement.scrollWidth > innerWidth ? ["the page is " + document.documentElement.scrollWidth + " wide"] : []),
	]`
	if err := t.Value(look, &bad); err != nil {
		return err
	}
	if len(bad) > 0 {
		return fmt.Errorf("on a screen of %d pixels: %s", t.o.Width, strings.Join(bad, "; "))
	}
	return nil
}

// Elsewhere are the requests that do not go to a site.
func (t *Tab) Elsewhere(site string) []string {
	return slices.DeleteFunc(slices.Clone(t.Requests), func(url string) bool {
		return strings.HasPrefix(url, site) || strings.HasPrefix(url, "data:") || url == "about:blank"
	})
}

// Picture writes a PNG of the page from its top, at most so many pixels high; 0: all of it.
func (t *Tab) Picture(file string, height int) error {
	var size struct{ CSSContentSize struct{ Height float64 } }
	if err := t.call("Page.getLayoutMetrics", nil, &size); err != nil {
		return err
	}
	if all := int(size.CSSContentSize.Height); height == 0 || all < height {
		height = all
	}
	var shot struct{ Data string }
	clip := map[string]any{"x": 0, "y": 0, "width": t.o.Width, "height": height, "scale": 1}
	if err := t.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true, "optimizeForSpeed": false, "clip": clip}, &shot); err != nil {
		return err
	}
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

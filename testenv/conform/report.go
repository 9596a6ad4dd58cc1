package conform

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run found. The JSON keys are stable.
type Report struct {
	Manager string    `json:"manager"`
	Client  string    `json:"client"`
	Began   time.Time `json:"began"`
	Results []Result  `json:"results"`
}

// Result is what became of a case.
type Result struct {
	Case    string        `json:"case"`
	Rules   []string      `json:"rules"`
	Title   string        `json:"title"`
	Outcome string        `json:"outcome"` // passed, failed, skipped
	Message string        `json:"message,omitempty"`
	Took    time.Duration `json:"took"` // nanoseconds
}

// Count is the number of cases with an outcome.
func (r *Report) Count(outcome string) (n int) {
	for _, c := range r.Results {
		if c.Outcome == outcome {
			n++
		}
	}
	return n
}

// Write writes the report as text, json or junit.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "text":
		return r.text(w)
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "junit":
		return r.junit(w)
	}
	return fmt.Errorf("format %q: choose text, json or junit", format)
}

func (r *Report) text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, c := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Outcome, c.Case, strings.Join(c.Rules, " "), c.Title)
		for line := range strings.Lines(c.Message) {
			fmt.Fprintf(t, "\t  %s\n", strings.TrimSpace(line))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s as %s: %d passed, %d failed, %d skipped\n", r.Manager, r.Client, r.Count(Passed), r.Count(Failed), r.Count(Skipped))
	return err
}

type junitCase struct {
	Class   string  `xml:"classname,attr"`
	Name    string  `xml:"name,attr"`
	Seconds float64 `xml:"time,attr"`
	Failure *string `xml:"failure,omitempty"`
	Skipped *string `xml:"skipped,omitempty"`
}

func (r *Report) junit(w io.Writer) error {
	suite := struct {
		XMLName xml.Name    `xml:"testsuite"`
		Name    string      `xml:"name,attr"`
		Tests   int         `xml:"tests,attr"`
		Failed  int         `xml:"failures,attr"`
		Skipped int         `xml:"skipped,attr"`
		Cases   []junitCase `xml:"testcase"`
	}{Name: r.Manager, Tests: len(r.Results), Failed: r.Count(Failed), Skipped: r.Count(Skipped)}
	for _, c := range r.Results {
		group, _, _ := strings.Cut(c.Case, ".")
		j := junitCase{Class: "margo." + group, Name: c.Case, Seconds: c.Took.Seconds()}
		switch message := c.Message; c.Outcome {
		case Failed:
			j.Failure = &message
		case Skipped:
			j.Skipped = &message
		}
		suite.Cases = append(suite.Cases, j)
	}
	b, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, b)
	return err
}

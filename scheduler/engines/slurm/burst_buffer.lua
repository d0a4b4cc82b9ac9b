-- Connects Slurm's burst_buffer/lua plugin with Larder's allocator: docs/slurm.md. Lua 5.1.
-- Each function runs larder-slurm, which prints "ok" or "error" on its first line, and its answer below.
-- slurmctld waits for job_process, pools, paths and get_status. For these, larder-slurm ends after 80 ms at the latest.

lua_script_name = "burst_buffer.lua of Larder"

-- LARDER_SLURM names the program if slurmctld does not find it in its PATH.
local program = os.getenv("LARDER_SLURM") or "larder-slurm"

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

-- Returns what a Slurm function returns: a status and a text.
local function run(...)
    local words = {quoted(program)}
    -- When a job is cancelled in its stage-in, Slurm may kill the process group of its teardown, too, and not try again.
    if (...) == "release" then table.insert(words, 1, "setsid --wait") end
    for _, word in ipairs({...}) do words[#words + 1] = quoted(word) end
    local pipe = io.popen(table.concat(words, " ") .. " 2>&1 </dev/null", "r")
    if not pipe then return slurm.ERROR, "larder: " .. program .. " cannot be run" end
    local answer = pipe:read("*a")
    pipe:close()
    local status, text = answer:match("^(%a+)\n(.*)$")
    if status == "ok" then return slurm.SUCCESS, text end
    if status == "error" then return slurm.ERROR, "larder: " .. text:gsub("%s+$", "") end
    return slurm.ERROR, "larder: " .. program .. " failed: " .. answer
end

-- At sbatch. The text of an error reaches the user.
function slurm_bb_job_process(job_script)
    return run("check", job_script)
end

-- Slurm calls this every 30 s.
-- While no allocator answers, the pool stays as it was. An error would make Slurm accept jobs without asking
-- job_process, and start none of them.
function slurm_bb_pools()
    os.execute("setsid " .. quoted(program) .. " release-ended </dev/null >/dev/null 2>&1 &")
    local status, text = run("pools")
    if status == slurm.SUCCESS then return status, text end
    slurm.log_error("%s", text)
    return slurm.SUCCESS
end

function slurm_bb_setup(job_id, uid, gid, pool, size, job_script)
    return run("begin", job_id, uid, job_script)
end

-- The job stays pending until this ends. Slurm kills it if the job is cancelled.
function slurm_bb_data_in(job_id, job_script)
    return run("stage-in", job_id, job_script)
end

-- The lines that are written to env_file become the job's environment.
function slurm_bb_paths(job_id, job_script, env_file)
    local status, text = run("environment", job_id, job_script)
    if status ~= slurm.SUCCESS then return status, text end
    local file, why = io.open(env_file, "w")
    if not file then return slurm.ERROR, "larder: " .. why end
    file:write(text)
    file:close()
    return slurm.SUCCESS
end

-- After an error, Slurm calls this again until it succeeds.
function slurm_bb_job_teardown(job_id, job_script, hurry)
    return run("release", job_id)
end

-- scontrol show bbstat. Slurm shows no text of an error.
function slurm_bb_get_status(...)
    local status, text = run("status")
    return slurm.SUCCESS, status == slurm.SUCCESS and text or text .. "\n"
end

-- The plugin wants all of its functions.
function slurm_bb_test_data_in() return slurm.SUCCESS, "" end
function slurm_bb_real_size() return slurm.SUCCESS, "0" end
function slurm_bb_pre_run() return slurm.SUCCESS, "" end
function slurm_bb_post_run() return slurm.SUCCESS, "" end
function slurm_bb_data_out() return slurm.SUCCESS, "" end
function slurm_bb_test_data_out() return slurm.SUCCESS, "" end
